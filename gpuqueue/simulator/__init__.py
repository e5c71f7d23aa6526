"""What a site would have done with a trace of jobs: our policy by its real scripts, and others beside it."""
