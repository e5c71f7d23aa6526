"""The Python environments that hosts offer by name: the setting ``environments``, and the check of a name. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpuqueue.errors import BadRequest
from gpuqueue.text.sanitize import brief, is_name, name_of, plain

#: Variables of another active environment, which tools would prefer to the first Python on PATH. A job with
#: ``--environment`` does not get them.
OF_ANOTHER_PYTHON = frozenset({"VIRTUAL_ENV", "VIRTUAL_ENV_PROMPT", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "PYTHONHOME"})


def programs(text: str) -> dict[str, str]:
    """Return the Python program of each environment in a setting such as ``torch-2.6=/opt/torch-2.6/bin/python``.

    Raises:
        BadRequest: an entry is malformed.

    """
    found: dict[str, str] = {}
    for word in text.split():
        name, _, path = word.partition("=")
        if not is_name(name) or not path:
            raise BadRequest(
                f"{brief(word)} is no environment: write torch-2.6=/opt/torch-2.6/bin/python, without spaces"
            )
        if not path.startswith("/") or path.endswith("/"):
            raise BadRequest(
                f"environment {name}: {brief(path)} is no absolute path of a Python program: write "
                f"{name}=/opt/{name}/bin/python"
            )
        if name in found:
            raise BadRequest(f"environment {name} is named twice")
        found[name] = path
    return found


def check_known(name: str, hosts: Iterable[Sequence[str] | None]) -> None:
    """Check that a host has the environment *name*; *hosts* are the names that each host has, None if unknown.

    Raises:
        BadRequest: no host has it. The message has the names that hosts have.

    """
    name_of("environment", name)
    offered = list(hosts)
    known = sorted({each for names in offered for each in names or ()})
    if name in known or None in offered or not offered:
        return
    if not known:
        raise BadRequest(
            f"no host has the environment {name}, or any other: the setting environments of a host names them. "
            "Name a Python by its path on the hosts with --python"
        )
    from difflib import get_close_matches  # noqa: PLC0415 - only for a name that is mistaken

    close = get_close_matches(name, known, n=1)
    meant = f" Did you mean {close[0]}?" if close else ""
    raise BadRequest(f"no host has the environment {name}.{meant} There are {', '.join(map(plain, known))}")
