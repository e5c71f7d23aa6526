"""Where a job looks for a daemon of NVIDIA's MPS. Standard library only.

Where jobs run as their submitters, the worker names a place without one (``environment.py``), and a launcher that
starts signed jobs permits no other.
"""

from __future__ import annotations

#: The variable that names the directory of the pipes of NVIDIA's MPS daemon.
MPS_PIPES = "CUDA_MPS_PIPE_DIRECTORY"
#: A directory that is not there, and that only root could make. Every other account could start a daemon in its own.
NO_PIPES = "/nonexistent"
