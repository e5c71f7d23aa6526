"""The values of the queue: jobs, runs, devices, arrays, limits, events. Pure, without I/O.

Not here: serialization (``gpuqueue.codec``) and storage (``gpuqueue.queue``, ``gpuqueue.history``). Start reading at
``job.py``.
"""
