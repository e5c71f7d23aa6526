"""What all benchmarks measure with: figures and their floors, alternating rounds, private places, tables."""
