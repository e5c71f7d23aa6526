"""System mode: what ``gpuqueue install`` makes on a machine, and ``gpuqueue uninstall`` removes.

``site.py`` has the names and paths, ``units.py`` the texts of the files. ``files.py``, ``accounts.py`` and
``services.py`` have the steps. ``plan.py`` puts them in order and keeps the record of what was made. Needs root.
"""
