"""Recovery when the store or the history database lost its data: each is refilled from the other.

Start reading at ``reopen.py``. The scripts and rows are in ``gpuqueue.queue`` and ``gpuqueue.history``.
"""
