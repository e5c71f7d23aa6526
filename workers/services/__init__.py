"""The services of a host: host process, recorder, reaper, sender, heartbeats, adoption, parking, pruning.

Start reading at ``host.py``.
"""
