"""Other job queues with the same trivial job and the same number of slots, on the same machine in the same run.

``python -m benchmarks.peers.install`` installs them into an environment of their own; ``python -m benchmarks.peers``
measures those that are installed. What remains after kills is a separate comparison: docs/internals/reliability.md.
"""
