"""Gives a warm interpreter the environment of its job, as if Python had been started in it. Python 3.8 and later.

Python itself changes the environment when it starts (``LC_CTYPE`` if there is no locale, PEP 538), and so do imported
modules. In a warm interpreter these changes happen before the job's environment is known, so they are applied to it
again. The effect of a ``sitecustomize`` or ``.pth`` file on another job's variables or directory is unknown. An
interpreter in which such a file changes a variable is therefore unusable. Loaded by :mod:`workers.inside.warm_start`.
Standard library only.
"""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Optional

#: The variables that Python itself sets at its start.
PYTHONS_OWN = ("LC_CTYPE",)


def given() -> "Dict[str, str]":
    """Return the environment that this process was started with; the current one if the kernel's copy is unreadable."""
    try:
        with open("/proc/self/environ", "rb") as file:
            pairs = [entry.partition(b"=") for entry in file.read().split(b"\0")]
    except OSError:
        return dict(os.environ)
    found = {}  # type: Dict[str, str]
    for name, equals, value in pairs:
        if equals:
            found.setdefault(os.fsdecode(name), os.fsdecode(value))  # the first of duplicates wins, as in Python
    return found


def changed_at_start(before: "Dict[str, str]") -> "Optional[str]":
    """Return a variable that differs from the start environment *before*, None if there is none."""
    now = dict(os.environ)
    names = sorted(name for name in {**before, **now} if now.get(name) != before.get(name))
    return next((name for name in names if name not in PYTHONS_OWN), None)


def take(env: "Dict[str, str]", before: "Dict[str, str]") -> None:
    """Replace the environment with *env*, and apply the changes that this process made to *before* to it again.

    A variable whose value in *env* differs from *before* keeps the job's value, because the change that a cold start
    would make to it is unknown.
    """
    after = dict(os.environ)
    changed = [name for name in {**before, **after} if after.get(name) != before.get(name)]
    wanted = dict(env)
    for name in changed:
        if env.get(name) == before.get(name):
            wanted.pop(name, None)
            if name in after:
                wanted[name] = after[name]
    for name in after:
        if name not in wanted:
            del os.environ[name]
    for name, value in wanted.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
