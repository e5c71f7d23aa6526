"""The setting ``burst``: from which engines this site borrows devices, and how. Pure."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from gpuqueue.errors import BadRequest
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.device import cards_in, without_beside
from gpuqueue.text.sanitize import brief, name_of
from gpuqueue.text.units import parse_bytes, parse_duration


@dataclass(frozen=True, kw_only=True, slots=True)
class PilotSettings:
    """How pilots of one engine are made: the table ``[burst.ENGINE]``.

    Of Slurm alone:

    - ``wrapper``: words before each command of the engine, such as ``ssh login``.
    - ``options``: more words for its submit command, such as ``--partition=gpu --account=lab``.
    - ``logs``: the directory of its machines for the logs of pilots. Empty: the home there.

    Of Kubernetes alone:

    - ``image``: the container image of a pilot, with gpuqueue and what its jobs import.
    - ``namespace``: where its Jobs are.
    - ``kubeconfig`` and ``context``: the file that says how the cluster is reached, and one of its contexts. Empty: as
      kubectl does it; in a pod, the account of the pod.
    - ``queue``: the name of Kueue's local queue. Empty: no Kueue.
    - ``gpu_resource``: the name of the devices in the cluster.
    - ``pod`` and ``container``: more fields of the pod and of its container, as Kubernetes writes them. Tables are
      merged with ours, and lists are added to ours.

    Of all engines:

    - ``service_url``: the service as the engine's machines reach it, ``https://HOST:PORT``. Empty: not set.
    - ``service_ca``: a file here with the certificate of the service's authority, which travels with a pilot.
    - ``program``: the path of ``gpuqueue`` on the engine's machines. Empty: the same as here.
    - ``prepare``: a line of shell that runs first, such as ``module load cuda``.
    - ``directory``: where a pilot has its private directory. Empty: ``$TMPDIR``, else ``/tmp``.
    - ``devices``: what a pilot serves, as in ``up --devices``.
    - ``pool``: the pool of its devices.
    - ``idle_s``: a pilot that ran no job for so long gives its allocation back.
    - ``wait_s``: how long the request may wait in the engine's queue.
    - ``when_waiting_s``: pilots are asked for without a person once a job that would start on one has waited for so
      long. None: only ``gpuqueue burst`` asks for pilots. The fields below are of this rule:
    - ``max_pilots``: the most pilots at a time, those of people included.
    - ``gpus`` and ``min_gpus``: the most GPUs of one pilot, and how many the waiting jobs must need.
    - ``hours``: how long a pilot lasts.
    - ``hours_a_day``: the most GPU-hours within 24 hours. None: no bound.
    - ``users``: whose jobs count; empty: everybody's.
    - ``mem_bytes`` and ``model``: the memory and the name of a card there, for the jobs that ask for them. With None
      for the memory each job counts as a whole card.
    - ``jobs_of_all``: whether a pilot is used at a site whose jobs run as their submitters. On a pilot all jobs run as
      the account to which the engine gave the allocation.
    """

    wrapper: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    logs: str = ""
    image: str = ""
    namespace: str = "default"
    kubeconfig: str = ""
    context: str = ""
    queue: str = ""
    gpu_resource: str = "nvidia.com/gpu"
    pod: Mapping[str, Any] = field(default_factory=dict)
    container: Mapping[str, Any] = field(default_factory=dict)
    service_url: str = ""
    service_ca: str = ""
    program: str = ""
    prepare: str = ""
    directory: str = ""
    devices: str = "gpu"
    pool: str = ""
    idle_s: float = 600.0
    wait_s: float = 86400.0
    jobs_of_all: bool = False
    when_waiting_s: float | None = None
    max_pilots: int = 4
    gpus: int = 1
    min_gpus: int = 1
    hours: float = 8.0
    hours_a_day: float | None = None
    users: tuple[str, ...] = ()
    mem_bytes: int | None = None
    model: str = ""


#: How simulated devices begin in a setting.
SIMULATED = "sim:"
#: A path that means the same in a shell, and in Slurm, where % is a sign.
_PLAIN_PATH = re.compile(r"(/[A-Za-z0-9._@+-]+)+")
#: Largest number of pilots or GPUs, and of hours, in a setting.
MAX_COUNT, MIN_HOURS, MAX_HOURS = 1000, 0.1, 100_000.0
#: The engines that there are, and what people call them. ``gpuqueue/engines/NAME.py`` has the rest.
ENGINES: Mapping[str, str] = {"slurm": "Slurm", "kubernetes": "Kubernetes"}
#: The fields of a pod and of its container that make it a pilot, and the names that Kubernetes allows.
_OUR_OF_POD = frozenset({"activeDeadlineSeconds", "containers", "restartPolicy", "terminationGracePeriodSeconds"})
_OUR_OF_CONTAINER = frozenset({"args", "command", "image", "name"})
#: Options of sbatch that would change the key of a job, its number, its log, or whether Slurm starts it twice.
_OUR_OPTIONS = ("--job-name", "--comment", "--array", "--output", "--error", "--open-mode", "--requeue", "--no-requeue")
_OUR_LETTERS = frozenset({"-J", "-a", "-o", "-e"})
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_RESOURCE = re.compile(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def _words(raw: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(raw))
    except ValueError as error:
        raise BadRequest(f"{brief(raw)}: {error}") from None


def _options(raw: str) -> tuple[str, ...]:
    """Read options of sbatch, which may be cut short. Those by which a job is found again, and made once, are ours."""
    words = _words(raw)
    for word in words:
        name = word.partition("=")[0] if word.startswith("--") else word[:2]
        is_ours = name in _OUR_LETTERS or any(len(name) > 3 and each.startswith(name) for each in _OUR_OPTIONS)  # noqa: PLR2004 - -- and two letters
        if is_ours:
            raise BadRequest(f"gpuqueue sets {name} itself: leave it out")
    return words


def _flag(raw: str) -> bool:
    if raw.lower() not in {"true", "false"}:
        raise BadRequest(f"{brief(raw)} is neither true nor false")
    return raw.lower() == "true"


def _absolute(raw: str) -> str:
    if raw and (not raw.startswith(("/", "$")) or not raw.isprintable()):
        raise BadRequest(f"{brief(raw)} is no absolute path")
    return raw


def _devices(raw: str) -> str:
    first = without_beside(raw)
    sizes = first.removeprefix(SIMULATED).split("+") if first.startswith(SIMULATED) else []
    try:
        named = bool(sizes) and all(parse_bytes(size.rpartition("x")[2]) for size in sizes)
    except BadRequest:
        named = False
    if not named and first not in {"auto", "gpu", "cpu"} and cards_in(first) is None:
        raise BadRequest(f"{brief(raw)} names no devices: write gpu, auto, gpu,cpu, or gpu:0,1 for only those GPUs")
    return raw


def _line(raw: str) -> str:
    if not raw.isprintable():
        raise BadRequest(f"{brief(raw)} is no single line")
    return raw


def _count(raw: str) -> int:
    if not raw.isascii() or not raw.isdigit() or not 1 <= int(raw) <= MAX_COUNT:
        raise BadRequest(f"{brief(raw)} is no number from 1 to {MAX_COUNT}")
    return int(raw)


def _hours(raw: str) -> float:
    try:
        hours = float(raw)
    except ValueError:
        hours = math.nan
    if not MIN_HOURS <= hours <= MAX_HOURS:
        raise BadRequest(f"{brief(raw)} is no number of hours from {MIN_HOURS:g} to {MAX_HOURS:g}")
    return hours


def _matching(pattern: re.Pattern[str], what: str) -> Callable[[str], str]:
    def read(raw: str) -> str:
        if not pattern.fullmatch(raw):
            raise BadRequest(f"{brief(raw)} is no {what}")
        return raw

    return read


def _fields(ours: frozenset[str]) -> Callable[[str], Mapping[str, Any]]:
    def read(raw: str) -> Mapping[str, Any]:
        try:
            found = json.loads(raw)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise BadRequest(f"{brief(raw)} is no table: write one in the settings file, or a JSON object")
        for name in sorted(ours & {*found}):
            raise BadRequest(f"gpuqueue sets {name} itself")
        return found

    return read


def _names(raw: str) -> tuple[str, ...]:
    return tuple(raw.replace(",", " ").split())


def _pool(raw: str) -> str:
    return name_of("pool name", raw) if raw else raw


#: Key in the table of one engine -> the field, and what reads its text.
_OWN_KEYS: Mapping[str, Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "slurm": {
        "wrapper": ("wrapper", _words),
        "options": ("options", _options),
        "logs": ("logs", _matching(_PLAIN_PATH, "absolute path of letters, digits and ._@+-")),
    },
    "kubernetes": {
        "image": ("image", _line),
        "namespace": ("namespace", _matching(_NAMESPACE, "namespace")),
        "kubeconfig": ("kubeconfig", _absolute),
        "context": ("context", _line),
        "queue": ("queue", _matching(_LABEL, "queue of Kueue")),
        "gpu_resource": ("gpu_resource", _matching(_RESOURCE, "resource")),
        "pod": ("pod", _fields(_OUR_OF_POD)),
        "container": ("container", _fields(_OUR_OF_CONTAINER)),
    },
}
#: The same, of the keys that all tables may have.
_KEYS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "service_url": ("service_url", _line),
    "service_ca": ("service_ca", _absolute),
    "program": ("program", _absolute),
    "prepare": ("prepare", _line),
    "directory": ("directory", _absolute),
    "devices": ("devices", _devices),
    "pool": ("pool", _pool),
    "idle": ("idle_s", parse_duration),
    "wait": ("wait_s", parse_duration),
    "jobs_of_all": ("jobs_of_all", _flag),
    "when_waiting": ("when_waiting_s", parse_duration),
    "max": ("max_pilots", _count),
    "gpus": ("gpus", _count),
    "min_gpus": ("min_gpus", _count),
    "hours": ("hours", _hours),
    "hours_a_day": ("hours_a_day", _hours),
    "users": ("users", _names),
    "mem": ("mem_bytes", parse_bytes),
    "model": ("model", _line),
}


def parse_burst(raw: str) -> dict[str, PilotSettings]:
    """Return the settings of each engine in the JSON *raw*: an object of objects, as the tables of the settings file.

    Raises:
        BadRequest: there is no such engine or key, or a value cannot be used.

    """
    if not raw.strip():
        return {}
    try:
        plain = json.loads(raw)
    except ValueError:
        plain = None
    if not isinstance(plain, dict) or not all(isinstance(table, dict) for table in plain.values()):
        raise BadRequest(f"{brief(raw)} has no table of an engine: write [burst.slurm] in the settings file")
    return {engine: _pilot_settings(engine, table) for engine, table in plain.items()}


def _pilot_settings(engine: str, table: Mapping[str, object]) -> PilotSettings:
    if engine not in ENGINES:
        raise BadRequest(f"{brief(engine)} is no engine: there is {', '.join(ENGINES)}")
    values: dict[str, Any] = {}
    keys = {**_OWN_KEYS[engine], **_KEYS}
    for key, value in table.items():
        if key not in keys:
            raise BadRequest(f"{brief(key)} is no setting of {engine}: there are {', '.join(keys)}")
        name, read = keys[key]
        try:
            values[name] = read(json.dumps(value) if isinstance(value, dict | list) else str(value))
        except BadRequest as error:
            raise BadRequest(f"{engine}.{key}: {error}") from None
    return PilotSettings(**values)
