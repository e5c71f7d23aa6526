"""One run on its host: its directory, its environment, its process tree, and the verdict on its ending.

Elsewhere: the steps of a run (``workers.steps``) and the process that owns the run (``workers.shim``).
Start reading at ``directory.py``.
"""
