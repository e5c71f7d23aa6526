"""The object ids that git gives to contents. Pure."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import _Hash

#: Names of the hash functions of a repository by the length of its object ids.
_HASHES = {40: "sha1", 64: "sha256"}


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
