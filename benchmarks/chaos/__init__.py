"""The chaos benchmark: kills everything at random moments, then compares the acknowledged jobs with what happened.

``python -m benchmarks.chaos --help`` explains its use; docs/internals/reliability.md explains what is counted.
"""
