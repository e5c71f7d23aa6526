"""What a script will need on a GPU, before it runs there: from runs of the past, or from a dry run on the CPU."""
