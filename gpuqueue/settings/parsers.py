"""The parsers of the settings: a mapping from the name of each field to the function that parses its text."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuqueue.errors import BadRequest
from gpuqueue.lazy.imports import later
from gpuqueue.model.device import DeviceFilter
from gpuqueue.model.notification import targets
from gpuqueue.model.placement import Preference, Visible
from gpuqueue.text.sanitize import brief, is_name, name_of
from gpuqueue.text.units import parse_bytes, parse_duration

if TYPE_CHECKING:
    import ipaddress
    from typing import TypeVar

    from gpuqueue.model import access, burst, container, python_environments
    from gpuqueue.model import slots as slotting
    from gpuqueue.settings import addresses, credentials

    _Value = TypeVar("_Value")
    _Choice = TypeVar("_Choice", bound=Enum)
else:  # few sites set what needs these
    ipaddress = later("ipaddress")
    access = later("gpuqueue.model.access")
    container = later("gpuqueue.model.container")
    burst = later("gpuqueue.model.burst")
    addresses = later("gpuqueue.settings.addresses")
    credentials = later("gpuqueue.settings.credentials")
    python_environments = later("gpuqueue.model.python_environments")
    slotting = later("gpuqueue.model.slots")

#: Shortest half-life, in seconds. Usage that decays faster than jobs run cannot order the queue.
LEAST_HALF_LIFE_S = 3600.0
#: Smallest limit of logs and results. A smaller log could not keep both a useful beginning and a useful end.
LEAST_LOG_LIMIT_BYTES = 2**20
#: Largest accepted count.
MOST = 1000


class OnPartition(str, Enum):
    """What happens to the running jobs of a host that is cut off from the store."""

    #: The jobs are ended before another worker can get them: there are never two live copies.
    STOP = "stop"
    #: The jobs go on. After the lease another worker may start them again. One copy is ended when the host is back.
    KEEP = "keep"

    __str__ = str.__str__


class LearnMemory(str, Enum):
    """What a job without ``--mem`` asks for."""

    #: The default of the submitter, the site or the pool. A line says what earlier runs needed.
    SUGGEST = "suggest"
    #: What at least three earlier runs with the same arguments needed, else the default.
    DEFAULT = "default"
    #: The same as with ``--mem auto``: what any earlier run of the script needed, else an estimate, else the default.
    AUTO = "auto"

    __str__ = str.__str__


class IdleAction(str, Enum):
    """What happens to a run that goes on without using its devices after it was marked as idle."""

    #: Nothing but the mark.
    MARK = "mark"
    #: Its priority counts as low until it uses its devices, so that other jobs may preempt it.
    LOWER_PRIORITY = "lower-priority"
    #: It is ended.
    END = "end"

    __str__ = str.__str__


class OnMemoryErrors(str, Enum):
    """What happens to a device with memory errors that could not be corrected, besides that they are shown."""

    #: Nothing.
    SHOW = "show"
    #: It takes no new job until its driver reports none.
    CLOSE = "close"

    __str__ = str.__str__


class OnWrongDevice(str, Enum):
    """What happens to a run that uses a device that it was not given, besides the messages."""

    #: Nothing but the messages.
    WARN = "warn"
    #: It is ended.
    END = "end"

    __str__ = str.__str__


class RunAs(str, Enum):
    """The account as which jobs run."""

    #: The account of the worker, for the queue of one person.
    WORKER = "worker"
    #: The account of the submitter. Then only the service may write to the store.
    SUBMITTER = "submitter"

    __str__ = str.__str__


def read_host(raw: str) -> str:
    """Return *raw*, the name of a host.

    Raises:
        BadRequest: the name cannot be part of a key in the store.

    """
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", raw):
        raise BadRequest(f"{brief(raw)} is no host name")
    return raw


def _one_of(kind: type[_Choice], otherwise: str) -> Callable[[str], _Choice]:
    """Return a parser of the words of *kind*. The message about another text says that it is *otherwise*."""

    def parse(raw: str) -> _Choice:
        try:
            return kind(raw)
        except ValueError:
            raise BadRequest(f"{brief(raw)} is {otherwise}") from None

    return parse


def _whole(least: int, most: int, otherwise: str) -> Callable[[str], int]:
    """Return a parser of whole numbers. The message about another text says that it is *otherwise*."""

    def parse(raw: str) -> int:
        if not re.fullmatch(r"[0-9]{1,9}", raw) or not least <= int(raw) <= most:
            raise BadRequest(f"{brief(raw)} is {otherwise}")
        return int(raw)

    return parse


def _or_none(parse: Callable[[str], _Value]) -> Callable[[str], _Value | None]:
    """Return a parser of the word ``none`` and of what *parse* reads."""
    return lambda raw: None if raw.lower() == "none" else parse(raw)


def _percent(raw: str) -> float:
    number = re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]{1,2})?) ?%", raw.strip())
    if number is None or not 0 < float(number[1]) <= 100:  # noqa: PLR2004 - all of it
        raise BadRequest(f"{brief(raw)} is no percentage: write 3 %, or none for no bound")
    return float(number[1]) / 100


def _late(parser: Callable[[], Callable[[str], _Value]]) -> Callable[[str], _Value]:
    """Return the parser that *parser* returns, whose module is imported for the first value."""
    return lambda raw: parser()(raw)  # noqa: PLW0108 - the lambda delays the import


def _pool(raw: str) -> str:
    return name_of("pool name", raw) if raw else raw


def _slots_on(raw: str) -> str:
    if raw:
        slotting.rules_of(raw)
    return raw


def _log_limit(raw: str) -> int:
    limit_bytes = parse_bytes(raw)
    if limit_bytes < LEAST_LOG_LIMIT_BYTES:
        raise BadRequest(f"{raw!r} is too little: give at least 1M, or none for no limit")
    return limit_bytes


def _half_life(raw: str) -> float:
    half_life_s = parse_duration(raw)
    if half_life_s < LEAST_HALF_LIFE_S:
        raise BadRequest(f"{raw!r} is too short: give at least 1h")
    return half_life_s


def _users(raw: str) -> str:
    names = [name.strip() for name in raw.split(",")]
    if raw.strip() != "*" and not all(map(is_name, names)):
        raise BadRequest(f"{brief(raw)} names no users: write ann,bob, or * for anybody")
    return ",".join(names)


def _admins(raw: str) -> str:
    names = [name.strip() for name in raw.split(",")]
    if not raw.strip():
        return ""
    if raw.strip() != "*" and not all(is_name(name.removeprefix("%")) for name in names):
        raise BadRequest(f"{brief(raw)} names no users: write ann,bob, %group for a Unix group, or * for anybody")
    return ",".join(names)


def _access(raw: str) -> str:
    access.parse_access(raw)
    return raw


def _flag(raw: str) -> bool:
    if raw.lower() not in {"true", "false"}:
        raise BadRequest(f"{brief(raw)} is neither true nor false")
    return raw.lower() == "true"


def _modules(raw: str) -> str:
    names = [name.strip() for name in raw.split(",")]
    if not all(re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", name, re.ASCII) for name in names):
        raise BadRequest(f"{brief(raw)} names no modules: write torch, or torch,torchvision")
    return ",".join(names)


def _networks(raw: str) -> str:
    names = [name.strip() for name in raw.split(",")] if raw.strip() else []
    try:
        return ",".join(str(ipaddress.ip_network(name)) for name in names)
    except ValueError as error:
        example = "write 10.1.0.0/16, or 10.1.2.3,fd00::/8"
        raise BadRequest(f"{brief(raw)} names no networks ({error}): {example}") from error


def _directory(raw: str) -> Path:
    try:
        path = Path(raw).expanduser()
    except RuntimeError as error:
        raise BadRequest(f"{brief(raw)}: there is no such home directory") from error
    if not path.is_absolute():
        raise BadRequest(f"{brief(raw)} is not absolute: processes in other directories must find the same place")
    bad = [char for char in str(path) if char in "%?#;" or not char.isprintable()]
    if bad:
        raise BadRequest(f"{brief(raw)} has a {bad[0]!r} in it, which an address cannot contain: choose another")
    return path


def _shells(raw: str) -> str:
    shells = [each.strip() for each in raw.split(",") if each.strip()]
    for each in shells:
        if not each.startswith("/"):
            raise BadRequest(f"{brief(each)} is no absolute path of a shell: write them as in /etc/shells")
    return ",".join(shells)


def _container_engine(raw: str) -> str:
    name, _, path = raw.strip().partition("=")
    if not raw.strip():
        return ""
    if name not in {*container.Engine} or ("=" in raw and not path.startswith("/")):
        names = ", ".join(container.Engine)
        raise BadRequest(f"{brief(raw)} is no container engine: write one of {names}, or podman=/opt/bin/podman")
    return raw.strip()


def _page(raw: str) -> str:
    credentials.origin_of(raw)
    return raw.rstrip("/")


_COUNT = _whole(1, MOST, f"no whole number from 1 to {MOST}")
#: The parser of each setting, in the order of the reference page.
READERS: dict[str, Callable[[str], Any]] = {
    "state_dir": _directory,
    "url": _late(lambda: addresses.service),
    "token_file": _directory,
    "workers_account": str,
    "store_socket": _directory,
    "service_url": _late(lambda: addresses.service),
    "service_token_file": _directory,
    "ticket_key_file": _directory,
    "service_ca": _directory,
    "record": _flag,
    "web_url": _page,
    "redis_url": str,
    "hosts_redis_url": _late(lambda: addresses.store_of_hosts),
    "hosts_redis_ca": _directory,
    "database_url": str,
    "host": read_host,
    "devices": str,
    "pool": _pool,
    "headroom_bytes": lambda raw: 0 if raw == "0" else parse_bytes(raw),
    "external_half_life_s": _or_none(parse_duration),
    "slots": _COUNT,
    "slots_on": _slots_on,
    "temperature_limit_c": _whole(30, 120, "no temperature: give a whole number of °C from 30 to 120"),
    "on_memory_errors": _one_of(OnMemoryErrors, "neither show nor close"),
    "default_mem_bytes": parse_bytes,
    "learn_memory": _one_of(LearnMemory, f"unknown here: write {', '.join(LearnMemory)}"),
    "mem_retries": _whole(0, 100, "no whole number from 0 to 100"),
    "max_failures": _or_none(_COUNT),
    "default_device": DeviceFilter.parse,
    "host_lost_after_s": parse_duration,
    "heartbeat_s": parse_duration,
    "poll_s": parse_duration,
    "kill_grace_s": parse_duration,
    "loss_limit": _COUNT,
    "requeue_free_after_s": _or_none(parse_duration),
    "half_life_s": _half_life,
    "shares": str,
    "groups": str,
    "limits": str,
    "pool_limits": str,
    "placement": Preference.parse,
    "container_engine": _container_engine,
    "visible": _one_of(Visible, "neither uuid nor index"),
    "urgent": _users,
    "admins": _admins,
    "extend_s": _or_none(lambda raw: 0.0 if raw == "0" else parse_duration(raw)),
    "access": _access,
    "request_rate": _or_none(_whole(1, 999_999, "no number of requests per second: write 200, or none for no limit")),
    "metrics_users": _flag,
    "reserve_hours": _COUNT,
    "reserve_after_s": _or_none(parse_duration),
    "reservations": _COUNT,
    "reserve_budget": _or_none(_percent),
    "age_after_s": _or_none(parse_duration),
    "preempt": str,
    "preempt_after_s": parse_duration,
    "preempt_grace_s": parse_duration,
    "idle_after_s": _or_none(parse_duration),
    "idle_action": _one_of(IdleAction, f"unknown here: write {', '.join(IdleAction)}"),
    "idle_grace_s": parse_duration,
    "stalled_after_s": _or_none(parse_duration),
    "disk_low_bytes": _or_none(parse_bytes),
    "on_wrong_device": _one_of(OnWrongDevice, "neither warn nor end"),
    "on_partition": _one_of(OnPartition, "neither stop nor keep"),
    "cap": _flag,
    "mps": _flag,
    "mps_pipe_directory": _directory,
    "mps_thread_percentage": _whole(1, 100, "no percentage: give a whole number from 1 to 100"),
    "limit_threads": _flag,
    "oom_score_adj": _whole(0, 1000, "no adjustment of a score: give a whole number from 0 to 1000"),
    "remove_shared_memory": _flag,
    "log_limit_bytes": _or_none(_log_limit),
    "user_log_limit_bytes": _or_none(_log_limit),
    "keep_logs_s": _or_none(parse_duration),
    "keep_code_s": _or_none(parse_duration),
    "results_limit_bytes": _or_none(_log_limit),
    "user_results_limit_bytes": _or_none(_log_limit),
    "keep_results_s": _or_none(parse_duration),
    "keep_snapshots_s": _or_none(parse_duration),
    "snapshot": _flag,
    "snapshot_limit_bytes": parse_bytes,
    "snapshot_file_limit_bytes": parse_bytes,
    "snapshot_files": _whole(1, 9_999_999, "no number of files: give a whole number from 1 to 9999999"),
    "snapshot_user_limit_bytes": parse_bytes,
    "environments": _late(lambda: python_environments.programs),
    "keep_environments_s": _or_none(parse_duration),
    "keep_secrets": _flag,
    "keep_audit_s": _or_none(parse_duration),
    "notify": targets,
    "notify_urls": _flag,
    "notify_networks": _networks,
    "git": _flag,
    "warm_interpreters": _whole(0, 99, "no number from 0 to 99"),
    "warm_modules": _modules,
    "warm_idle_s": parse_duration,
    "run_as": _one_of(RunAs, "neither worker nor submitter"),
    "login_shells": _shells,
    "launcher": _directory,
    "runs_dir": _directory,
    "burst": _late(lambda: burst.parse_burst),
}
