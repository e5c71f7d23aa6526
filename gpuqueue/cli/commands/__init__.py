"""The commands: one module for each verb, or for a few verbs that share everything.

A command reads its options, makes one call of the client and prints the answer. Options that several commands share are
in ``gpuqueue.cli.options``, printed values in ``gpuqueue.cli.output``. Start reading at ``submit.py``.
"""
