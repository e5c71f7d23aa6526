"""The environment of a job that a spare becomes: as if Python had been started in it. Any Python from 3.8 on.

Python itself changes the environment when it starts (``LC_CTYPE`` where there is no locale, PEP 538), and so does what
it runs then and what is imported: a ``sitecustomize``, a ``.pth`` file, torch. In a spare that came before the job did,
so that it is done over again. Loaded by :mod:`workers.inside.spare`. Standard library only.
"""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict


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
