"""The operating system of this machine: processes, log files, safe file access, git, and the submitter's environment.

Not here: the processes of a run on a GPU host, which are in ``workers``. Start reading at ``process.py``.
"""
