"""Git repositories for tests, made with the real git."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from gpuqueue.files.take import Snapshot

ENVIRONMENT = {
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@b",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@b",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
}


def git(directory: Path, *words: str) -> str:
    """Run git in *directory*; submodules may come from directories."""
    command = [shutil.which("git") or "git", "-c", "protocol.file.allow=always", *words]
    environ = {**os.environ, **ENVIRONMENT}
    return subprocess.run(command, cwd=directory, env=environ, capture_output=True, text=True, check=True).stdout


def write(root: Path, *paths: str, content: str = "x\n") -> None:
    """Write files below *root*."""
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content)


def make(root: Path, *paths: str) -> Path:
    """Make a repository with these files in one commit."""
    write(root, *paths)
    git(root, "init", "-q", "-b", "main")
    git(root, "add", "--all")
    git(root, "commit", "-q", "--allow-empty", "-m", "one")
    return root


def paths(snapshot: Snapshot) -> list[str]:
    """Return the paths in the snapshot."""
    return [each.path for each in snapshot.manifest.entries]
