"""The directory that the worker adds to the job's PYTHONPATH. It is a package only for gpuqueue's own checks."""
