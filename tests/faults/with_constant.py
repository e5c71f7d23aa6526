"""A real worker with one constant of its own: what it does once an hour a test can see at once.

python with_constant.py workers.prune:ROUND_S=0.2 run --device 0 --plain
"""

from __future__ import annotations

import sys
from importlib import import_module

if __name__ == "__main__":
    place, *sys.argv[1:] = sys.argv[1:]
    module, _, said = place.partition(":")
    name, _, value = said.partition("=")
    setattr(import_module(module), name, float(value))
    from workers.cli import main

    main()
