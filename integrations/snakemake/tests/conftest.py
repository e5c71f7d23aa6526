"""The tests of the plug-in run where Snakemake is installed: in an environment of its own, which dev.py makes.

Its packages need versions of others that the tools of this repository do not take.
"""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("snakemake") else ["test_*.py"]
