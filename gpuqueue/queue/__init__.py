"""The queue in Redis: what may run now. This is the only package that imports redis.

Start with ``jobqueue.py``: a :class:`JobQueue` has one group of operations for each subject, such as ``queue.jobs`` and
``queue.runs``. Each group takes a :class:`gpuqueue.queue.store.Store`, which runs the Lua scripts under ``lua``: one
file for each act. ``keys.py`` lists the keys of the store, ``job_fields.py`` the fields of a job. The history is
not here but in :mod:`gpuqueue.history`.
"""
