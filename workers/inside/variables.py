"""Gives a warm interpreter the environment of its job, as if Python had been started in it. Python 3.8 and later.

Python itself changes the environment when it starts (``LC_CTYPE`` if there is no locale, PEP 538), and so do imported
modules. In a warm interpreter these changes happen before the job's environment is known, so they are applied to it
again. The effect of a ``sitecustomize`` or ``.pth`` file on another job's variables is unknown, so an interpreter in
which such a file changes a variable is unusable. Loaded by :mod:`workers.inside.warm_start`. Standard library only.
"""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional

#: The variables that Python itself sets at its start.
PYTHONS_OWN = ("LC_CTYPE",)


def given() -> "Dict[str, str]":
    """Return the environment that this process was started with."""
    with open("/proc/self/environ", "rb") as file:
        pairs = [entry.partition(b"=") for entry in file.read().split(b"\0")]
    # Reversed: the first of duplicates wins, as in Python.
    return {os.fsdecode(name): os.fsdecode(value) for name, equals, value in reversed(pairs) if equals}


def differences(before: "Dict[str, str]", after: "Dict[str, str]") -> "List[str]":
    """Return the names of the variables that differ."""
    return sorted(name for name in {**before, **after} if before.get(name) != after.get(name))


def changed_at_start(before: "Dict[str, str]") -> "Optional[str]":
    """Return a variable that differs from the start environment *before*, None if there is none."""
    return next((name for name in differences(before, dict(os.environ)) if name not in PYTHONS_OWN), None)


def take(env: "Dict[str, str]", before: "Dict[str, str]") -> None:
    """Replace the environment with *env*, and apply the changes that this process made to *before* to it again.

    A variable whose value in *env* differs from *before* keeps the job's value, because the change that a cold start
    would make to it is unknown.
    """
    after, wanted = dict(os.environ), dict(env)
    for name in differences(before, after):
        if env.get(name) == before.get(name):
            wanted.pop(name, None)
            if name in after:
                wanted[name] = after[name]
    os.environ.clear()
    os.environ.update(wanted)
