"""The steps of one run, in order: check, choose Python, fetch code, authorise, spawn, follow, read exit, judge, report.

Each step takes the value that the step before it returned. ``workers.runner`` puts them together; start reading there.
It also has the short steps: check, choose Python, follow, read exit. A step that finds that the run must not start
raises ``NotStarted``.
"""
