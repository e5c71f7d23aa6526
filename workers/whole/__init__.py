"""Whole jobs: the runs of jobs that an engine runs, such as Slurm.

The worker of an engine claims such a job like any other. The process of its run is ``follower.py``, behind a shim: it
submits the job to the engine, copies the output into the log, and ends when the job has ended. ``outcome.py`` makes
the ending of the run from what the follower has learned. ``sweep.py`` ends jobs at the engine that nobody waits for.
"""
