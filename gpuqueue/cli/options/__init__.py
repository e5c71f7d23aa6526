"""Options and arguments that several commands share, and how their text is read.

Not here: what is printed (``gpuqueue.cli.output``).
"""
