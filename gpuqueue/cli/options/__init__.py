"""Options and arguments that several commands share, and the parsing of their values.

Output is in ``gpuqueue.cli.output``.
"""
