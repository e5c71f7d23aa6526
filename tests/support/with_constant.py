"""Runs a real worker with other constants, so that a test need not wait for what happens once an hour.

python with_constant.py workers.services.prune:ROUND_S=0.2 run --device 0 --plain
"""

from __future__ import annotations

import sys
from ast import literal_eval
from importlib import import_module

if __name__ == "__main__":
    while "=" in sys.argv[1]:
        place, _, value = sys.argv.pop(1).partition("=")
        module, _, name = place.partition(":")
        setattr(import_module(module), name, literal_eval(value))
    from workers.cli import main

    main()
