"""The shim: one process that owns one run and outlives the worker. Standard library only.

``supervisor.py`` is the shim itself, ``forkserver.py`` starts shims, ``client.py`` is the worker's end of it.
"""
