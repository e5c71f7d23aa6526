"""Fills the tables of docs/internals/performance.md from the report of one run. Its other text is written by hand."""
