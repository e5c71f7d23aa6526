"""The commands, one module for each or for a few that belong together.

A command reads its options, makes one call of the client and prints the answer. Options that several commands share are
in ``gpuqueue.cli.options``, and code that formats values is in ``gpuqueue.cli.output``. Start reading at ``submit.py``.
"""
