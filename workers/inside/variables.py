"""The environment of a job that a spare becomes: as if Python had been started in it. Any Python from 3.8 on.

Python itself changes the environment when it starts (``LC_CTYPE`` where there is no locale, PEP 538), and so does what
is imported. In a spare that came before the job did, so that it is done over again. What a ``sitecustomize`` or a
``.pth`` file makes of the variables of a job, or of its directory, nobody can know: where one changes any, there are no
spares. Loaded by :mod:`workers.inside.warm_start`. Standard library only.
"""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Optional

#: What Python itself sets at its start, whatever the job.
PYTHONS_OWN = ("LC_CTYPE",)


def given() -> "Dict[str, str]":
    """Return the environment that this process was started in; where the kernel does not tell, what is there now."""
    try:
        with open("/proc/self/environ", "rb") as file:
            pairs = [entry.partition(b"=") for entry in file.read().split(b"\0")]
    except OSError:
        return dict(os.environ)
    found = {}  # type: Dict[str, str]
    for name, equals, value in pairs:
        if equals:
            found.setdefault(os.fsdecode(name), os.fsdecode(value))  # as Python takes one that is there twice
    return found


def changed_at_start(before: "Dict[str, str]") -> "Optional[str]":
    """Return a variable that is not as it was *before* this Python ran anything, None if all are."""
    now = dict(os.environ)
    names = sorted(name for name in {**before, **now} if now.get(name) != before.get(name))
    return next((name for name in names if name not in PYTHONS_OWN), None)


def take(env: "Dict[str, str]", before: "Dict[str, str]") -> None:
    """Have exactly the environment *env*, but for what was set or taken away here since it was *before*.

    Where the job has another value than there was *before*, it keeps that: what would have become of it nobody knows.
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
