"""What runs beside the workers of a host: host process, recorder, reaper, sender, heartbeats, pruning.

Start reading at ``host.py``.
"""
