"""Every figure beside its floor, measured in the same run. ``python -m benchmarks --help`` tells how.

docs/performance.md tells how to read what comes out. ``benchmarks.chaos`` is the record of kills (docs/reliability.md).
"""
