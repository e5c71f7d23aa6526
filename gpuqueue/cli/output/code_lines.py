"""The lines of ``gpuqueue show`` about the code of a job: its git checkout, its Python and its snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuqueue.lazy.imports import later
from gpuqueue.model.git import Checkout
from gpuqueue.model.job_spec import JobSpec
from gpuqueue.text.sanitize import plain

if TYPE_CHECKING:
    from gpuqueue.model import code_snapshot
else:  # few jobs have one
    code_snapshot = later("gpuqueue.model.code_snapshot")


def code_lines(spec: JobSpec) -> list[str]:
    """Return the lines about the code of a job, each only if there is something to say."""
    return [
        *([f"  git        {_checkout_of(spec.git)}"] if spec.git else []),
        *([f"  python     environment {plain(spec.environment)}"] if spec.environment is not None else []),
        *([f"  code       {_code_of(spec.snapshot)}"] if spec.snapshot else []),
        *([f"  keep       {plain('  '.join(spec.keep))}"] if spec.keep else []),
    ]


def _code_of(text: str) -> str:
    """Return a snapshot of code in words."""
    snapshot = code_snapshot.CodeSnapshot.parse(text)
    below = "" if snapshot.directory == "." else f", in {plain(snapshot.directory)}"
    return f"a copy of its own, snapshot {snapshot.address[:12]}{below}"


def _checkout_of(git: Checkout) -> str:
    """Return commit, branch and state of a git checkout: ``3442fefc16a1 on main, nothing changed``."""
    changes = {True: "with changes that are not committed", False: "nothing changed", None: "changes not known"}
    return f"{git.commit[:12]}" + (f" on {plain(git.branch)}" if git.branch else "") + f", {changes[git.dirty]}"
