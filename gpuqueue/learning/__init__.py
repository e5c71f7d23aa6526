"""What earlier runs teach about the memory of the next one.

The package is pure: it reads no history and sends nothing. :mod:`gpuqueue.history.past_runs` turns rows of the history
into values of :mod:`gpuqueue.learning.past_run`. :mod:`gpuqueue.learning.signature` selects the runs that are like a
job, :mod:`gpuqueue.learning.rule` computes a number from them, and :mod:`gpuqueue.learning.advice` puts it into words.
:mod:`gpuqueue.client.memory` decides what a submit does with it.

Start with ``rule.py``. :mod:`gpuqueue.estimate.past` applies the same rule to runs of other users and of other files
with the same name, for a person who asks.
"""
