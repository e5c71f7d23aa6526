"""The same procedure for others: workers that run a script with ``subprocess.run`` are killed at random."""
