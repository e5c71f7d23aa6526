"""Telling people of the ends of their jobs: what is said, to whom, and the process that says it. docs/adr/0009."""
