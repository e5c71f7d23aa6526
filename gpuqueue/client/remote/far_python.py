"""Chooses the Python of a script whose code travels to another machine.

The first of these counts: ``--environment``, ``--python``, ``uv run`` if the code has a ``uv.lock`` for the script, and
the ``python3`` of the host.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpuqueue.errors import BadRequest
from gpuqueue.model.script_args import UV_INTERPRETER, UV_PYTHON, UV_RUN
from gpuqueue.text.sanitize import plain

if TYPE_CHECKING:
    from gpuqueue.model.job_request import JobRequest
    from gpuqueue.model.job_spec import JobSpec
    from gpuqueue.snapshot.take import Snapshot

_LOCK, _PROJECT = "uv.lock", "pyproject.toml"


def chosen(request: JobRequest, spec: JobSpec, snapshot: Snapshot) -> JobSpec:
    """Return *spec* with the Python that its script has on the host, by *request* and by what *snapshot* holds.

    Raises:
        BadRequest: *request* names a Python of this machine, which does not travel.

    """
    if spec.interpreter is None or spec.environment is not None:
        return spec
    paths = {each.path for each in snapshot.manifest.entries}
    if request.python is not None:
        _check_python(spec.interpreter, spec.cwd, snapshot, paths)
        return spec
    project = _uv_project(spec.argv[1], snapshot.cwd, paths)
    if project is None:
        return spec
    option = () if project == "." else (f"--project={project}",)
    return replace(spec, argv=(*UV_RUN, *option, UV_PYTHON, *spec.argv[1:]), interpreter=UV_INTERPRETER)


def in_words(spec: JobSpec) -> str | None:
    """Return a line about the Python of *spec* for its submitter, None for a command that names its own."""
    if spec.environment is not None:
        return f"python: environment {spec.environment}"
    if spec.interpreter is None:
        return None
    if spec.interpreter == UV_INTERPRETER:
        return f"python: {UV_INTERPRETER} ({_LOCK})"
    return f"python: {plain(spec.interpreter)} of the host"


def _uv_project(script: str, cwd: str, paths: set[str]) -> str | None:
    """Return the uv project for *script*, relative to *cwd*: "." if uv finds it from there, None if there is no lock.

    As with ``uv run python script`` in *cwd*, the project of *cwd* comes first, and that of the script second. Its lock
    may lie further up, in the workspace of a member.
    """
    for start in (cwd, posixpath.dirname(posixpath.normpath(posixpath.join(cwd, script)))):
        above = list(_upwards(start))
        if any({posixpath.join(each, _LOCK), posixpath.join(each, _PROJECT)} <= paths for each in above):
            project = next(each for each in above if posixpath.join(each, _PROJECT) in paths)
            return "." if start == cwd else posixpath.relpath(project or ".", cwd)
    return None


def _upwards(folder: str) -> Iterator[str]:
    """Yield *folder* and all directories above it, up to the top of the snapshot, which is empty."""
    folder = "" if folder == "." else folder
    while folder:
        yield folder
        folder = posixpath.dirname(folder)
    yield ""


def _check_python(python: str, cwd: str, snapshot: Snapshot, paths: set[str]) -> None:
    """Refuse a *python* of this machine. What the hosts have cannot be known, so other paths are accepted."""
    if "/" not in python:
        return
    if not python.startswith("/") and posixpath.normpath(posixpath.join(snapshot.cwd, python)) in paths:
        return
    path = os.path.normpath(os.path.join(cwd, python))  # noqa: PTH118 - a link to a Python elsewhere is not resolved
    place = _place_here(path, snapshot.root)
    if place is not None:
        fault = f"{plain(python)} is a Python of this machine, in {plain(place)}, and does not travel"
    elif not python.startswith("/"):
        fault = f"{plain(python)} does not travel with the code"
    else:
        return
    raise BadRequest(
        f"{fault}: name an environment of the hosts with --environment, or a path there with --python. If the hosts "
        "have it at the same path, put it and the script after --"
    )


def _place_here(path: str, root: Path) -> str | None:
    """Return what is only on this machine and holds *path*: an active environment, the code's directory or the home."""
    real = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))  # noqa: PTH118, PTH119, PTH120
    home = os.path.expanduser("~")  # noqa: PTH111 - as the settings do
    places = [os.environ.get("VIRTUAL_ENV"), os.environ.get("CONDA_PREFIX"), str(root)]
    if os.path.lexists(path):  # one that is not here is meant for the hosts
        places.append(home)
    for place in places:
        if place and place.strip("/"):
            whole = (os.path.abspath(place), os.path.realpath(place))  # noqa: PTH100
            if any(each.startswith(f"{holder}/") for each in (path, real) for holder in whole):
                return place
    return None
