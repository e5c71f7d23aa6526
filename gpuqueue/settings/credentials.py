"""The access tokens that ``gpuqueue login`` has stored for this user, by the address of the service.

They are in ``credentials.json`` in the user's configuration directory for gpuqueue. Only the user may read the file. A
token is sent to the scheme, host and port that it was stored for, and to no other.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from gpuqueue.errors import BadRequest, GpuQueueError
from gpuqueue.text.sanitize import brief, without_password

#: Hosts to which a token may go without TLS: this machine, as through an SSH tunnel.
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_PORTS = {"https": 443, "http": 80}
#: Largest file that is read, in bytes.
_MOST_BYTES = 1024 * 1024


def token_for(url: str, environ: Mapping[str, str] | None = None) -> str | None:
    """Return the stored token for the service at *url*, None without one. A unix socket needs none.

    Raises:
        BadRequest: *url* is no address that a token may be sent to, or others may read the file.

    """
    if url.startswith("unix:"):
        return None
    known = _read(credentials_file(environ))
    return known.get(origin_of(url)) if known else None


def store(url: str, token: str, environ: Mapping[str, str] | None = None) -> Path:
    """Store *token* for the service at *url*, and return the file. It replaces an earlier one for this service.

    Raises:
        BadRequest: *url* is no address that a token may be sent to, or others may read the file.
        GpuQueueError: the file cannot be written.

    """
    path, origin = credentials_file(environ), origin_of(url)
    return _write(path, {**_read(path), origin: token})


def forget(url: str, environ: Mapping[str, str] | None = None) -> bool:
    """Delete the stored token for the service at *url*. Return False if there is none.

    Raises:
        BadRequest: *url* is no address that a token may be sent to.
        GpuQueueError: the file cannot be written.

    """
    path, origin = credentials_file(environ), origin_of(url)
    known = _read(path)
    if known.pop(origin, None) is None:
        return False
    _write(path, known)
    return True


def credentials_file(environ: Mapping[str, str] | None = None) -> Path:
    """Return the path of the file, whether or not it exists."""
    environ = os.environ if environ is None else environ
    home = environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")  # noqa: PTH111 - a str is wanted
    return Path(home) / "gpuqueue" / "credentials.json"


def origin_of(url: str) -> str:
    """Return the scheme, host and port of *url*, such as ``https://gpu.example.org:443``.

    Raises:
        BadRequest: *url* is no such address, has a password, or would send a token over a network without TLS.

    """
    shown = brief(without_password(url))
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise BadRequest(f"{shown} is no address of a service: write https://HOST") from None
    if parts.scheme not in _PORTS or not host:
        raise BadRequest(f"{shown} is no address of a service that needs a token: write https://HOST")
    if parts.username is not None or parts.password is not None:
        raise BadRequest(
            "the address of a service has no user and no password in it: gpuqueue login asks for the token"
        )
    if parts.scheme == "http" and host not in _LOOPBACK:
        raise BadRequest(f"plain HTTP shows the access token to the network: write https://{parts.netloc}")
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{port or _PORTS[parts.scheme]}"


def _read(path: Path) -> dict[str, str]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise BadRequest(f"{path} cannot be read: {error.strerror}: log in again after you have deleted it") from error
    with os.fdopen(fd, "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid():
            raise BadRequest(f"{path} is no file of yours: delete it, revoke the tokens, and log in again")
        if stat.S_IMODE(about.st_mode) & 0o077:
            raise BadRequest(f"others may use the tokens in {path}: chmod 600 {path}")
        content = file.read(_MOST_BYTES)
    try:
        known = json.loads(content)
    except ValueError:
        known = None
    if not isinstance(known, dict) or not all(isinstance(each, str) for each in known.values()):
        raise BadRequest(f"{path} is damaged: delete it, and log in again")
    return known


def _write(path: Path, known: Mapping[str, str]) -> Path:
    made = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(fd, "w", encoding="ascii") as file:
                json.dump(known, file, indent=2)
            made.replace(path)
        except BaseException:
            with suppress(OSError):
                made.unlink()
            raise
    except OSError as error:
        raise GpuQueueError(f"the token cannot be stored in {path}: {error.strerror or error}") from error
    return path
