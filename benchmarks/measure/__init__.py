"""What every benchmark measures with: figures and their floors, rounds in alternation, places to measure in, tables."""
