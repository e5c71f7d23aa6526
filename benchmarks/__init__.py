"""The benchmarks: each figure with its floor, from the same run. ``python -m benchmarks --help`` explains their use.

docs/internals/performance.md explains the output. ``benchmarks.chaos`` is the chaos record:
docs/internals/reliability.md.
"""
