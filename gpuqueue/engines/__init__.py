"""Engines: schedulers of others, such as Slurm, from which gpuqueue borrows devices.

Start reading in ``engine.py``. Each engine is one file, and ``tests/support/engine_conformance.py`` holds all of them
to the same promises.
"""
