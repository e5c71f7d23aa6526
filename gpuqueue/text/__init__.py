"""Text in and out: units, sanitized untrusted text, JSON fields, redacted URLs.

Every function is pure. Not here: tables and messages of the command line, which are in ``gpuqueue.cli``.
Start reading at ``units.py``.
"""
