"""Following a job in the foreground: its output, its terminal, Ctrl-C and its exit code.

Used by ``run``, ``attach``, ``wait`` and ``logs -f``. Start reading at ``attach.py``.
"""
