"""docs/performance.md: its tables are written from the report of one run, its words by hand."""
