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
from gpuqueue.model.placement import Preference
from gpuqueue.model.python_environments import programs
from gpuqueue.text.sanitize import brief, is_name, name_of
from gpuqueue.text.units import parse_bytes, parse_duration

if TYPE_CHECKING:
    from gpuqueue.model import access
    from gpuqueue.model import slots as slotting
    from gpuqueue.settings import addresses, credentials
else:
    access = later("gpuqueue.model.access")
    addresses = later("gpuqueue.settings.addresses")
    credentials = later("gpuqueue.settings.credentials")
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

    def __str__(self) -> str:
        return self.value


class LearnMemory(str, Enum):
    """What a job without ``--mem`` asks for."""

    #: The default of the submitter, the site or the pool. A line says what earlier runs needed.
    SUGGEST = "suggest"
    #: What at least three earlier runs with the same arguments needed, else the default.
    DEFAULT = "default"
    #: The same as with ``--mem auto``: what any earlier run of the script needed, else an estimate, else the default.
    AUTO = "auto"

    def __str__(self) -> str:
        return self.value


class IdleAction(str, Enum):
    """What happens to a run that goes on without using its devices after it was marked as idle."""

    #: Nothing but the mark.
    MARK = "mark"
    #: Its priority counts as low until it uses its devices, so that other jobs may preempt it.
    LOWER_PRIORITY = "lower-priority"
    #: It is ended.
    END = "end"

    def __str__(self) -> str:
        return self.value


class RunAs(str, Enum):
    """The account as which jobs run."""

    #: The account of the worker, for the queue of one person.
    WORKER = "worker"
    #: The account of the submitter. Then only the service may write to the store.
    SUBMITTER = "submitter"

    def __str__(self) -> str:
        return self.value


def read_host(raw: str) -> str:
    """Return *raw*, the name of a host.

    Raises:
        BadRequest: the name cannot be part of a key in the store.

    """
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", raw):
        raise BadRequest(f"{brief(raw)} is no host name")
    return raw


def _pool(raw: str) -> str:
    return name_of("pool name", raw) if raw else raw


def _positive(raw: str) -> int:
    number = int(raw) if re.fullmatch(r"[0-9]{1,9}", raw) else 0
    if not 1 <= number <= MOST:
        raise BadRequest(f"{brief(raw)} is no whole number from 1 to {MOST}")
    return number


def _files(raw: str) -> int:
    number = int(raw) if re.fullmatch(r"[0-9]{1,7}", raw) else 0
    if not number:
        raise BadRequest(f"{brief(raw)} is no number of files: give a whole number from 1 to 9999999")
    return number


def _slots_on(raw: str) -> str:
    if raw:
        slotting.rules_of(raw)
    return raw


def _size_or_zero(raw: str) -> int:
    return 0 if raw == "0" else parse_bytes(raw)


def _log_limit(raw: str) -> int | None:
    if raw.lower() == "none":
        return None
    limit_bytes = parse_bytes(raw)
    if limit_bytes < LEAST_LOG_LIMIT_BYTES:
        raise BadRequest(f"{raw!r} is too little: give at least 1M, or none for no limit")
    return limit_bytes


def _duration_or_none(raw: str) -> float | None:
    return None if raw.lower() == "none" else parse_duration(raw)


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


def _request_rate(raw: str) -> int | None:
    if raw.lower() == "none":
        return None
    if not re.fullmatch(r"[1-9][0-9]{0,5}", raw):
        raise BadRequest(f"{brief(raw)} is no number of requests per second: write 200, or none for no limit")
    return int(raw)


def _flag(raw: str) -> bool:
    if raw.lower() not in {"true", "false"}:
        raise BadRequest(f"{brief(raw)} is neither true nor false")
    return raw.lower() == "true"


def _percentage(raw: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]?|100", raw):
        raise BadRequest(f"{brief(raw)} is no percentage: give a whole number from 1 to 100")
    return int(raw)


def _interpreters(raw: str) -> int:
    if not re.fullmatch(r"[0-9]{1,2}", raw):
        raise BadRequest(f"{brief(raw)} is no number from 0 to 99")
    return int(raw)


def _modules(raw: str) -> str:
    names = [name.strip() for name in raw.split(",")]
    if not all(re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", name, re.ASCII) for name in names):
        raise BadRequest(f"{brief(raw)} names no modules: write torch, or torch,torchvision")
    return ",".join(names)


def _on_partition(raw: str) -> OnPartition:
    try:
        return OnPartition(raw)
    except ValueError:
        raise BadRequest(f"{raw!r} is neither stop nor keep") from None


def _learn_memory(raw: str) -> LearnMemory:
    if raw not in list(LearnMemory):
        raise BadRequest(f"{brief(raw)} is unknown here: write {', '.join(LearnMemory)}")
    return LearnMemory(raw)


def _idle_action(raw: str) -> IdleAction:
    if raw not in list(IdleAction):
        raise BadRequest(f"{brief(raw)} is unknown here: write {', '.join(IdleAction)}")
    return IdleAction(raw)


def _mem_retries(raw: str) -> int:
    if not re.fullmatch(r"[0-9]{1,2}|100", raw):
        raise BadRequest(f"{brief(raw)} is no whole number from 0 to 100")
    return int(raw)


def _run_as(raw: str) -> RunAs:
    try:
        return RunAs(raw)
    except ValueError:
        raise BadRequest(f"{brief(raw)} is neither worker nor submitter") from None


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


def _service(raw: str) -> str:
    return addresses.service(raw)


def _service_of_hosts(raw: str) -> str:
    return addresses.service_of_hosts(raw)


def _page(raw: str) -> str:
    credentials.origin_of(raw)
    return raw.rstrip("/")


def _store_of_hosts(raw: str) -> str:
    return addresses.store_of_hosts(raw)


#: The parser of each setting, in the order of the reference page.
READERS: dict[str, Callable[[str], Any]] = {
    "state_dir": _directory,
    "url": _service,
    "token_file": _directory,
    "service_url": _service_of_hosts,
    "service_token_file": _directory,
    "service_ca": _directory,
    "record": _flag,
    "web_url": _page,
    "redis_url": str,
    "hosts_redis_url": _store_of_hosts,
    "hosts_redis_ca": _directory,
    "database_url": str,
    "host": read_host,
    "devices": str,
    "pool": _pool,
    "headroom_bytes": _size_or_zero,
    "external_half_life_s": _duration_or_none,
    "slots": _positive,
    "slots_on": _slots_on,
    "default_mem_bytes": parse_bytes,
    "learn_memory": _learn_memory,
    "mem_retries": _mem_retries,
    "default_device": DeviceFilter.parse,
    "host_lost_after_s": parse_duration,
    "heartbeat_s": parse_duration,
    "poll_s": parse_duration,
    "kill_grace_s": parse_duration,
    "loss_limit": _positive,
    "half_life_s": _half_life,
    "shares": str,
    "groups": str,
    "limits": str,
    "pool_limits": str,
    "placement": Preference.parse,
    "urgent": _users,
    "admins": _admins,
    "access": _access,
    "request_rate": _request_rate,
    "metrics_users": _flag,
    "reserve_after_s": _duration_or_none,
    "reservations": _positive,
    "age_after_s": _duration_or_none,
    "preempt": str,
    "preempt_after_s": parse_duration,
    "preempt_grace_s": parse_duration,
    "idle_after_s": _duration_or_none,
    "idle_action": _idle_action,
    "idle_grace_s": parse_duration,
    "on_partition": _on_partition,
    "cap": _flag,
    "mps": _flag,
    "mps_pipe_directory": _directory,
    "mps_thread_percentage": _percentage,
    "log_limit_bytes": _log_limit,
    "user_log_limit_bytes": _log_limit,
    "keep_logs_s": _duration_or_none,
    "keep_code_s": _duration_or_none,
    "results_limit_bytes": _log_limit,
    "user_results_limit_bytes": _log_limit,
    "keep_results_s": _duration_or_none,
    "keep_snapshots_s": _duration_or_none,
    "snapshot": _flag,
    "snapshot_limit_bytes": parse_bytes,
    "snapshot_file_limit_bytes": parse_bytes,
    "snapshot_files": _files,
    "snapshot_user_limit_bytes": parse_bytes,
    "environments": programs,
    "keep_environments_s": _duration_or_none,
    "keep_secrets": _flag,
    "keep_audit_s": _duration_or_none,
    "notify": targets,
    "notify_urls": _flag,
    "git": _flag,
    "warm_interpreters": _interpreters,
    "warm_modules": _modules,
    "warm_idle_s": parse_duration,
    "run_as": _run_as,
    "launcher": _directory,
    "runs_dir": _directory,
}
