"""The chaos record: kill everything at random moments, then compare what was promised with what happened.

``python -m benchmarks.chaos --help`` tells how; docs/reliability.md tells what is counted.
"""
