"""What runs inside a job's own Python: standard library only, any Python from 3.8 on, nothing of ours imported.

The worker puts ``site/`` first on the PYTHONPATH of every job that holds a GPU. Python imports ``sitecustomize``
from there at its start, before any of the job's own code. docs/explanation/memory-cap.md tells the whole story.
"""
