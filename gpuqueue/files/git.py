"""Runs git in a repository that may be hostile: no program of its configuration runs, and nothing is written to it.

And computes the object ids that git gives to contents.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gpuqueue.files.errors import SnapshotRefused
from gpuqueue.files.names import quoted
from gpuqueue.text.sanitize import in_one_line

if TYPE_CHECKING:
    from hashlib import _Hash

#: Settings of the repository that would run programs or write to it.
_SAFE = (
    *("-c", "core.fsmonitor=false", "-c", "core.untrackedCache=false", "-c", f"core.hooksPath={os.devnull}"),
    *("-c", "core.splitIndex=false", "-c", "submodule.recurse=false"),
)
#: No lock, no question, no replaced objects, and no fetch of missing ones, for which the configuration may name any
#: program.
_ENVIRONMENT = {
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_ALLOW_PROTOCOL": "none",
    "LC_ALL": "C",
}
#: Time limit of one call of git, in seconds. A network disk that does not answer would block it forever.
_MOST_S = 300.0
#: Names of the hash functions of a repository by the length of its object ids.
_HASHES = {40: "sha1", 64: "sha256"}


def in_work_tree(
    directory: Path, work_tree: Path, words: tuple[str, ...], given: bytes = b""
) -> tuple[bytes, Iterator[str]]:
    """Return the output of git in *directory* of the *work_tree*, and its warnings. *given* is its input.

    Raises:
        SnapshotRefused: git fails or is not installed.

    """
    # git finds the repository by itself, so that it checks the owner. It may not search above, or take a work tree that
    # the configuration names.
    places = {"GIT_WORK_TREE": str(work_tree), "GIT_CEILING_DIRECTORIES": str(work_tree.parent)}
    return run(directory, words, places, what=f"git cannot list {quoted(str(work_tree))}", given=given)


def run(
    directory: Path, words: tuple[str, ...], places: Mapping[str, str], *, what: str, given: bytes = b""
) -> tuple[bytes, Iterator[str]]:
    """Return the output of git in *directory*, and its warnings. *places* are variables that name a repository.

    *what* begins the message of an error.

    Raises:
        SnapshotRefused: git fails or is not installed.

    """
    import subprocess  # noqa: PLC0415 - imports slow down the start of a command

    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}  # set in git hooks
    try:
        done = subprocess.run(
            ["git", *_SAFE, *words],  # noqa: S607 - the user's git
            cwd=directory,
            env={**environ, **_ENVIRONMENT, **places},
            input=given,
            capture_output=True,
            check=False,
            timeout=_MOST_S,
        )
    except FileNotFoundError:
        raise SnapshotRefused(
            f"{quoted(places.get('GIT_WORK_TREE', str(directory)))} is a git work tree, but git is not installed"
        ) from None
    except (OSError, subprocess.SubprocessError) as error:
        raise SnapshotRefused(f"{what}: {in_one_line(str(error))}") from None
    errors = os.fsdecode(done.stderr)
    if done.returncode:
        raise SnapshotRefused(f"{what}: {in_one_line(' '.join(errors.split()))}")
    return done.stdout, (f"git: {in_one_line(line)}" for line in errors.splitlines())


def git_hash_of(git_id: str) -> str | None:
    """Return the name of the hash function of a repository with the object *git_id*, None if it is unknown."""
    return _HASHES.get(len(git_id))


def git_digest(size_bytes: int, git_hash: str) -> _Hash:
    """Return the digest of a content of *size_bytes*, which is to be added."""
    return hashlib.new(git_hash, b"blob %d\0" % size_bytes, usedforsecurity=False)


def git_id_of(content: bytes, git_hash: str) -> str:
    """Return the object id of *content*."""
    digest = git_digest(len(content), git_hash)
    digest.update(content)
    return digest.hexdigest()
