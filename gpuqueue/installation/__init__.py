"""System mode: what ``gpuqueue install`` makes on a machine, and ``gpuqueue uninstall`` removes.

``site.py`` has the names and paths, ``units.py`` the texts of the files. ``steps.py`` puts the steps in order, most of
which are in ``files.py``, ``accounts.py`` and ``services.py``. ``plan.py`` checks, makes and removes them, and keeps
the record of what was made. Needs root.
"""
