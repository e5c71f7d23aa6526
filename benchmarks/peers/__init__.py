"""Others at the same trivial job, with the same number of slots, on the same machine and in the same run.

``python -m benchmarks.peers.install`` installs them into an environment of their own, ``python -m benchmarks.peers``
measures what is there. What is left after kills is another comparison: docs/reliability.md.
"""
