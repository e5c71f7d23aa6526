"""A directory of the job's PYTHONPATH; it is a package only so that our own checks see it."""
