"""Staying with a job in the foreground: its output, an attached terminal, Ctrl-C, its exit code.

Used by ``run``, ``attach``, ``wait`` and ``logs -f``. Start reading at ``attach.py``.
"""
