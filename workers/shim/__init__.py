"""The shim: one process that owns one run and outlives the worker. Standard library only.

``supervisor.py`` is the shim itself, ``forkserver.py`` starts shims, and ``client.py`` asks the fork server for shims
on behalf of the worker.
"""
