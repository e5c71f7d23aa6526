"""The launcher ``gpuqueue`` of Hydra: a multirun is an array.

Hydra imports this package and its modules without an underscore at each start of each app, so they import little.
``config.py`` has the options, ``gpuqueue_launcher.py`` the class that Hydra calls, ``_launch.py`` what it does.
"""

__version__ = "0.2.0"
