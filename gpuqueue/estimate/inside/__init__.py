"""Programs that run in the script's own Python during a dry run. They are executed by path and never imported.

They use the standard library and the torch of that Python. The syntax must work on Python 3.8.
"""
