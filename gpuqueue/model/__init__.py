"""What things are: jobs, runs, devices, arrays, limits, events and what can be said about them.

Pure values without I/O. Not here: how values become bytes (``gpuqueue.codec``), where they are stored
(``gpuqueue.queue``,
``gpuqueue.history``). Start reading at ``job.py``.
"""
