"""Reads the values of the settings, from the environment, the settings file and this machine, and checks that they fit.

A value comes from the environment (``GPUQUEUE_POLL=5s``), else from a TOML file (``poll = "5s"``). The file is
``$GPUQUEUE_CONFIG``, or ``config.toml`` in the user's configuration directory for gpuqueue. Only this module reads
them.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuqueue.errors import BadRequest
from gpuqueue.lazy.imports import later
from gpuqueue.settings.parsers import READERS, read_host
from gpuqueue.text.sanitize import brief

if TYPE_CHECKING:
    from gpuqueue.model import limits as limiting
    from gpuqueue.model import preemption
    from gpuqueue.model import shares as sharing
    from gpuqueue.model.limits import Limits
    from gpuqueue.text import nearest
else:
    limiting, sharing = later("gpuqueue.model.limits"), later("gpuqueue.model.shares")
    preemption = later("gpuqueue.model.preemption")
    nearest = later("gpuqueue.text.nearest")

PREFIX = "GPUQUEUE_"
#: Keys of the variables that docker-compose.yml reads from its shell.
OF_COMPOSE = ("extra_pip", "shm_size", "user_id", "work")
#: Default of ``host_lost_after``, in seconds. On one machine a host without heartbeats has no workers. Over a network
#: the store may be unreachable while its machine or a switch reboots. Up to an hour of that ends no run.
HOST_LOST_AFTER_S = 300.0
HOST_LOST_AFTER_OVER_NETWORK_S = 3720.0
#: Least number of heartbeats in a lease: some may be late or get lost.
HEARTBEATS_IN_A_LEASE = 5
#: Longest time between two heartbeats, in seconds, and the default. The scripts count on a device for 15 s after its
#: last heartbeat (SEEN_MS in queue/lua/shared/core.lua), and one heartbeat may be a little late.
LONGEST_HEARTBEAT_S = 10.0
#: Longest path of the embedded store's socket, in bytes. The system's limit is about 107 bytes.
_MAX_SOCKET_PATH = 90
#: Largest settings file that is read, in bytes.
_MAX_FILE_BYTES = 1024 * 1024


def read_values(environ: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str], tuple[BadRequest, ...]]:
    """Return the values of the fields, the source of each field, and the errors of values that cannot be used.

    The values are those that are given and can be read, and the defaults that depend on them or on this machine.
    """
    faults: list[BadRequest] = []
    from_file: dict[str, Any] = {}
    try:
        from_file = _read_file(environ)
    except BadRequest as error:
        faults.append(error)
    given, origins = _given(environ, from_file, faults)
    values = _with_defaults(given, faults)
    origins = {name: origins.get(name, "default") for name in READERS}
    return values, origins, (*faults, *_contradictions(values, origins))


def key_of(name: str) -> str:
    """Return the key of the field *name* in the settings file: the name without its unit."""
    return name.removesuffix("_bytes").removesuffix("_s").removesuffix("_c")


def variable_of(name: str) -> str:
    """Return the environment variable of the field *name*."""
    return _variable(key_of(name))


def _variable(key: str) -> str:
    return PREFIX + key.upper()


def unknown_variables(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables that look like settings and are none, each with a hint. Inside a job there are none.

    A job has variables of its own, ``GPUQUEUE_JOB_ID`` and others, and may submit jobs.
    """
    environ = os.environ if environ is None else environ
    if PREFIX + "JOB_ID" in environ:
        return {}
    keys = [*map(key_of, READERS), "config"]
    known = {*map(_variable, keys), *map(_variable, OF_COMPOSE)}
    unknown = [each for each in sorted(environ) if each.startswith(PREFIX) and each not in known]
    return {each: nearest.meant(each.removeprefix(PREFIX).lower(), keys, _variable) for each in unknown}


def settings_file(environ: Mapping[str, str]) -> Path:
    """Return the path of the settings file, whether or not it exists."""
    named = environ.get(PREFIX + "CONFIG")
    if named:
        return Path(named)
    home = environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")  # noqa: PTH111 - a str is wanted
    return Path(home) / "gpuqueue" / "config.toml"


def embedded_socket(state_dir: Path) -> Path:
    """Return the embedded store's socket: in *state_dir*, or in /tmp if that path is too long for a socket.

    Raises:
        BadRequest: the directory in /tmp is a symbolic link, or belongs to another user.

    """
    path = state_dir / "store" / "store.sock"
    if len(os.fsencode(path)) <= _MAX_SOCKET_PATH:
        return path
    import hashlib  # noqa: PLC0415 - rare, and imports delay every command

    digest = hashlib.sha256(os.fsencode(state_dir)).hexdigest()[:12]
    directory = Path("/tmp") / f"gpuqueue-{os.getuid()}-{digest}"  # noqa: S108 - made 0700 by the store
    if os.path.lexists(directory) and (directory.is_symlink() or directory.stat().st_uid != os.getuid()):
        raise BadRequest(
            f"{directory} is not yours: another account may intercept your jobs there. Choose a shorter state_dir"
        )
    return directory / "store.sock"


def is_far(service_url: str | None) -> bool:
    """Return whether the service of a worker host is on another machine: it has a URL of HTTP."""
    return service_url is not None and not service_url.startswith("unix:")


def is_directory(path: str) -> bool:
    """Return whether a directory is at *path*."""
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)  # noqa: PTH116 - one system call of each command
    except (OSError, ValueError):
        return False


def limits_of(limits: str, pool_limits: str, groups: str) -> Limits:
    """Return the limits of a site from the texts of these settings.

    Raises:
        BadRequest: the limits cannot be read.

    """
    try:
        members = sharing.Shares.parse("", groups).members
    except BadRequest:  # reported already, with the shares
        members = {}
    return limiting.Limits.parse(limits, pool_limits, members)


def _contradictions(values: Mapping[str, Any], origins: Mapping[str, str]) -> Iterator[BadRequest]:
    """Yield the errors of values that contradict each other, or whose syntax no parser has checked yet."""
    heartbeat_s, lease_s = values.get("heartbeat_s", LONGEST_HEARTBEAT_S), values["host_lost_after_s"]
    shortest_s = HEARTBEATS_IN_A_LEASE * heartbeat_s
    if heartbeat_s > LONGEST_HEARTBEAT_S:
        yield BadRequest(
            f"setting heartbeat ({origins['heartbeat_s']}): {heartbeat_s:g} s is too long, devices "
            f"would count as silent between two heartbeats: give at most {LONGEST_HEARTBEAT_S:g} s"
        )
    elif lease_s < shortest_s:
        yield BadRequest(
            f"host_lost_after of {lease_s:g} s is too short for a heartbeat every {heartbeat_s:g} s, "
            f"jobs would be lost: give it at least {shortest_s:g} s"
        )
    judged = partial(_faults_of, origins)
    shares, groups, preempt = (values.get(name, "") for name in ("shares", "groups", "preempt"))
    limits, pool_limits = (values.get(name, "") for name in ("limits", "pool_limits"))
    if shares or groups:
        yield from judged(lambda: sharing.Shares.parse(shares, groups), "shares", "groups")
    if limits or pool_limits:
        yield from judged(lambda: limits_of(limits, pool_limits, groups), "limits", "pool_limits")
    if preempt:
        yield from judged(lambda: preemption.parse_preempt(preempt), "preempt")


def _faults_of(origins: Mapping[str, str], judge: Callable[[], object], *names: str) -> Iterator[BadRequest]:
    """Yield the error that *judge* raises, with the sources of the settings *names* that are not defaults."""
    try:
        judge()
    except BadRequest as error:
        given = [f"{name} ({origins[name]})" for name in names if origins[name] != "default"]
        yield BadRequest(f"setting {' and '.join(given)}: {error}")


def _given(
    environ: Mapping[str, str], from_file: Mapping[str, Any], faults: list[BadRequest]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the given values and the source of each. Append the errors to *faults*."""
    path = settings_file(environ)
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for name, read in READERS.items():
        if variable_of(name) in environ:
            raw, origin = environ[variable_of(name)], f"environment {variable_of(name)}"
        elif key_of(name) in from_file:
            raw, origin = from_file[key_of(name)], f"file {path}"
        else:
            continue
        try:
            values[name] = read(_as_words(raw))
            origins[name] = origin
        except (BadRequest, ValueError) as error:
            faults.append(BadRequest(f"setting {key_of(name)} ({origin}): {error}"))
    known = [key_of(name) for name in READERS]
    faults += [
        BadRequest(f"file {path}: {key!r} is no setting: {nearest.meant(key, known)}")
        for key in sorted(set(from_file) - {*known})
    ]
    return values, origins


def _as_words(raw: object) -> str:
    """Return a value from the file as text, as in the environment: a table becomes ``name=value`` words.

    A table of tables becomes JSON.
    """
    if isinstance(raw, Mapping) and any(isinstance(value, Mapping) for value in raw.values()):
        import json  # noqa: PLC0415 - few sites have such a table

        return json.dumps(raw, default=str)
    return " ".join(f"{name}={value}" for name, value in raw.items()) if isinstance(raw, Mapping) else str(raw)


def _with_defaults(values: dict[str, Any], faults: list[BadRequest]) -> dict[str, Any]:
    state_dir = values.get("state_dir") or _default_state_dir(faults)
    try:
        socket_path = values.get("store_socket") or embedded_socket(state_dir)
    except BadRequest as error:
        faults.append(error)
        socket_path = state_dir / "store" / "store.sock"
    # The workers beside a service cannot know whether other hosts use its store, and have the same value as these.
    for_team = not {"hosts_redis_url", "workers_account", "service_url"}.isdisjoint(values)
    over_network = for_team or not values.get("redis_url", "unix:").startswith("unix:")
    return {
        "redis_url": f"unix://{socket_path}",
        # A host without a store's address reaches the store through the service, and the history is written there.
        "record": "redis_url" in values or not is_far(values.get("service_url")),
        "host_lost_after_s": HOST_LOST_AFTER_OVER_NETWORK_S if over_network else HOST_LOST_AFTER_S,
        "database_url": f"sqlite:///{state_dir / 'history.db'}",
        "host": values.get("host") or _own_name(faults),
        "runs_dir": state_dir / "runs",
        "mps_pipe_directory": state_dir / "mps",
        **values,
        "state_dir": state_dir,
    }


def _own_name(faults: list[BadRequest]) -> str:
    try:
        return read_host(os.uname().nodename)
    except BadRequest as error:
        faults.append(BadRequest(f"this machine's name cannot be used as the host: {error}. Set GPUQUEUE_HOST"))
        return "unnamed"


def _default_state_dir(faults: list[BadRequest]) -> Path:
    if sys.platform == "linux":  # like platformdirs, whose import would take longer than all else here
        home = os.environ.get("XDG_STATE_HOME", "").strip() or os.path.expanduser("~/.local/state")  # noqa: PTH111
        found = Path(home) / "gpuqueue"
    else:
        import platformdirs  # noqa: PLC0415 - not needed where GPUQUEUE_STATE_DIR is set

        try:
            found = platformdirs.user_state_path("gpuqueue")
        except RuntimeError:  # older versions return the tilde instead
            found = Path("~")
    if found.is_absolute():
        return found
    faults.append(BadRequest("this account has no home directory: set GPUQUEUE_STATE_DIR to a directory of yours"))
    return Path(os.devnull, "gpuqueue")  # nothing can ever be written there


def _read_file(environ: Mapping[str, str]) -> dict[str, Any]:
    path = settings_file(environ)
    try:
        return toml_of(path, f"the settings file {path}")
    except OSError as error:
        if environ.get(PREFIX + "CONFIG"):
            raise BadRequest(
                f"cannot read the settings file {path}: {error.strerror}. Name another with GPUQUEUE_CONFIG"
            ) from error
        return {}
    except ValueError as error:
        raise BadRequest(f"{brief(str(path))} is no path of a settings file: {error}") from error


def toml_of(path: Path, name: str) -> dict[str, Any]:
    """Return the content of the TOML file *path*, which messages call *name*.

    Raises:
        OSError: the file cannot be read.
        ValueError: *path* is no path.
        BadRequest: the file is no TOML, or too large.

    """
    with path.open("rb") as file:
        content = file.read(_MAX_FILE_BYTES + 1)
    if len(content) > _MAX_FILE_BYTES:
        raise BadRequest(f"{name} is larger than {_MAX_FILE_BYTES} bytes: is it the right file?")
    if not content.strip():
        return {}
    if sys.version_info >= (3, 11):
        import tomllib as toml  # noqa: PLC0415 - only where there is a file
    else:
        import tomli as toml  # noqa: PLC0415 - as above
    try:
        parsed: dict[str, Any] = toml.loads(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise BadRequest(f"{name} is not TOML: it is no text in UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"{name} is not TOML: {brief(str(error))}") from error
    return parsed
