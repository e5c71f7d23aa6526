"""One run on its host: its directory, its environment, its process tree, and the verdict about its end.

Not here: the order of the steps (``workers.runner``), the process that owns the run (``workers.shim``).
Start reading at ``directory.py``.
"""
