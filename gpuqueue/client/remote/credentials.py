"""The access token that a client sends to a service over HTTPS."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from gpuqueue.errors import BadRequest
from gpuqueue.settings import credentials as stored_logins

if TYPE_CHECKING:
    from pathlib import Path

    from gpuqueue.settings.settings import Settings

#: Largest file of a token that is read, in bytes.
MOST_BYTES = 4096


def token_for(url: str, settings: Settings) -> str | None:
    """Return the token for the service at *url*, or None if there is none.

    Raises:
        BadRequest: the file cannot be read, others may read it, or it has no token.

    """
    path = settings.token_file
    return stored_logins.token_for(url) if path is None else token_in(path)


def token_in(path: Path) -> str:
    """Return the token in the file *path*.

    Raises:
        BadRequest: the file cannot be read, others may read it, or it has no token.

    """
    try:
        with path.open("rb") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise BadRequest(f"others may read the token in {path}: chmod 600 {path}")
            text = file.read(MOST_BYTES).decode("ascii", "replace").strip()
    except OSError as error:
        raise BadRequest(f"the token file {path} cannot be read: {error.strerror}") from error
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise BadRequest(f"{path} holds no access token: it has one line, the token")
    return text
