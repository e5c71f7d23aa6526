"""The launcher: the only privileged part. It starts the processes of jobs as their submitters. Standard library only.

Root runs it on a host whose jobs run as their submitters (setting ``run_as``). Start reading in ``main.py``: it listens
for shims and forks one guard for each run. ``guard.py`` is the parent of the run's processes, ``account.py`` decides
whether a job may run as an account, ``session.py`` opens a PAM session if root wants one, and ``become.py`` becomes the
user. All of it but ``installation.py``, which install and doctor use, runs as root: keep it small.
"""
