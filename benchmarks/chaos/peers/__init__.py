"""The same procedure for other queues: their workers run a script with ``subprocess.run`` and are killed at random."""
