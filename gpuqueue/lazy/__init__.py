"""Lazy imports, regular expressions and dataclasses, which keep the start of a command short.

Here: modules imported on first use, regular expressions compiled on first use, frozen dataclasses whose methods are
generated on first use. Not here: anything about jobs or queues. Start reading at ``imports.py``.
"""
