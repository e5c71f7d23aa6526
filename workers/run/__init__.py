"""One run on its host: its directory, its environment, its process tree, and the verdict on its ending.

Elsewhere: the order of the steps (``workers.runner``) and the process that owns the run (``workers.shim``).
Start reading at ``directory.py``.
"""
