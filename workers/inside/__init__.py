"""Code that runs inside a job's own Python. Standard library only, Python 3.8 and later, no other gpuqueue imports.

The worker puts ``site/`` first on the PYTHONPATH of every job that holds a GPU. Python imports ``sitecustomize``
from there at its start, before any of the job's own code. See docs/explanation/memory-cap.md.
"""
