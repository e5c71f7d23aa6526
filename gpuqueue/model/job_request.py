"""What a user can say about a job when submitting or editing it, in the forms that users type. Pure.

``JobRequest`` is the one list of these values. The client derives the arguments of ``client.jobs.submit`` from it and
turns it into a :class:`gpuqueue.model.job_spec.JobSpec`, whose values are validated and complete. ``JobEdit`` has those
that can change while the job waits. ``spec_fields`` reads the values of both. A test
(``tests/unit/client/test_job_request.py``) holds the options of the command line, the JSON of a spec and the columns of
the history to it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY
from typing import TYPE_CHECKING, Any

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model import host_limits, validation
from gpuqueue.model.job_spec import tags_of
from gpuqueue.model.placement import Visible

if TYPE_CHECKING:
    import os
    from datetime import datetime

    from gpuqueue.model.array import Array
    from gpuqueue.model.code_snapshot import CodeWith
    from gpuqueue.model.dependencies import Dependency
    from gpuqueue.model.device import DeviceFilter
    from gpuqueue.model.job_spec import EarlySignal, Priority
    from gpuqueue.model.placement import Preference
    from gpuqueue.model.retries import RetryOn
    from gpuqueue.model.terminal_size import Window


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A job to submit. With *array* or *sweep*, the job is an array of many members.

    Attributes:
        command: A script's path (``"train.py"``), or a whole command line as a list.
        args: The script's arguments.
        mem: Memory needed on each device: bytes, or a size such as ``"6G"`` (binary). ``"auto"`` asks for what earlier
            runs of the script needed. By default the default of the site or of the pool.
        gpus: Number of devices, all on one host and of one kind. With *on*, the number on all nodes together.
        on: The engine that the job is handed to as a whole, which then decides when and where it runs: ``"slurm"``.
        nodes: With *on*, the number of machines. The command is started once on each.
        device: ``"gpu"``, ``"cpu"`` or ``"any"``. Or the devices that the job may use, each an index on this host,
            ``"HOST:INDEX"``, a UUID or a prefix of one. By default the site's setting, else a GPU if one is known.
        device_type: Only devices of this model, or of one of these models, by words of the name: ``"A100"``.
        exclusive: Whether the job is alone on each of its devices. Without ``mem`` it gets all of their memory.
        preference: ``"spread"`` (the device with the largest share of its memory free), ``"pack"`` (the device with
            the least free memory that is enough) or ``"least-busy"`` (the device that its jobs are expected to use
            least). By default the site's setting.
        time_limit: Seconds, or a duration such as ``"2h"``. The job is ended when its time is over.
        signal: Signal sent to the job's first process before its time limit: ``"USR1@120"`` is 120 seconds before.
        name: The job's name. By default the name of the script.
        env: Variables added to this process's environment, which is passed to the job: a mapping, or ``"KEY=VALUE"``
            texts.
        cwd: The working directory. By default the current directory.
        priority: The priority: a Priority, or its name such as ``"high"``.
        pool: Only devices of this pool.
        requeue: Whether the job may run again after its worker and its processes vanished.
        cap: Whether to configure the job's frameworks to stay within ``mem``, if the worker's site does that.
        pty: Whether the job's output is a terminal, of the size of this process's terminal. Or a terminal size, which
            also says whether users may type on the terminal. The log is the terminal's output.
        warm: Whether the script works in a Python that has already imported ``torch``, so that it may start warm.
        python: The interpreter of a ``.py`` script. By default that of the active environment.
        environment: The name of a Python environment of the hosts, in place of *python*. Each host has its own path for
            it (setting ``environments``), and only hosts that have it can start the job.
        after: Dependencies, the jobs that must end first: ids, or texts such as ``"12:any"``.
        begin: The earliest start: a time, or a text such as ``"2h"`` or ``"16:00"``.
        hold: Whether the job is held from the start.
        dedupe: A key. If a job of this account with this key waits or runs, that job is returned and no job is
            submitted.
        retries: How often the job runs again after it failed.
        retry_on: The endings that cause a retry: ``"failed,lost"`` or several RetryOn.
        mem_retries: How often the job runs again, with more memory, after it died for lack of device memory. By default
            the site's setting. 0 turns this off.
        on_end: Targets to notify after the job's final end: names of the site's targets, mail addresses or Apprise
            URLs.
        on_fail: Targets to notify after any final end but success.
        array: Indexes such as ``"0-99"``, or ``"0-99%8"`` for at most 8 members at a time.
        sweep: Names and their values, ``{"lr": [1e-3, 1e-4]}`` or ``["lr=1e-3,1e-4", "seed=0..4"]``. The array has a
            member for each combination. ``{lr}`` in the arguments is replaced by the value. ``lr=@FILE``
            reads the values from a file, one a line.
        each_line: A file. The array has a member for each of its lines, as the value of ``{line}``.
        at_once: The largest number of members of an array or a sweep that run at a time.
        max_failures: The number of failed members after which the rest of an array or a sweep is held, if none has
            succeeded. By default the site's setting. 0 turns this off.
        tags: Words for finding the job.
        git: Whether to record the git checkout of *cwd*. By default the site's setting.
        separate_stderr: Whether standard error goes into its own file, next to the log.
        output: The name of a link to the log, which each run makes in *cwd*: ``"out-%j.txt"``. ``%j`` is the id of the
            job, ``%A`` that of the array, ``%a`` the index of the member, ``%N`` the host, ``%x`` the name,
            ``%u`` the account.
        error: The same for standard error, which then goes into a file of its own.
        snapshot: Whether the code travels with the job, which then runs in a copy of its own: True for the git work
            tree of *cwd* (*cwd* itself without git), or a directory that holds *cwd*, or a CodeWith, which adds files.
            By default only to a service on another machine.
        snapshot_allow: Patterns of files that look like secrets and may travel all the same.
        keep: Patterns, as in ``.gitignore``, of files in the job's copy of its code to keep longer than the copy:
            ``["results/**"]``. Only if the code travels.
        probe: When a run that is to find out the memory of the job ends early: ``"flat=60,steps=200"`` is when its peak
            has not grown for 60 seconds, or after 200 steps of its progress bar. Needs *time_limit*.
        cpus: The most processors that the job may keep busy on average, such as 4 or 0.5. A limit, no reservation. Only
            hosts that can enforce it run the job.
        cpu_mem: The most host memory that the job may use: bytes, or a size such as ``"32G"``. As for *cpus*.
        visible: ``"uuid"``, or ``"index"`` for a program that reads numbers from CUDA_VISIBLE_DEVICES. By default the
            setting of the host.
        stop_on_nan: Whether a run is ended, as a failure without a retry, once a metric that it reports is no number.
        stop_when_stalled: The run is ended, as a failure, once it has written no output and has not used its devices
            for so long: seconds, or a duration such as ``"30m"``.
        container: The image that the job runs in, by its name for the container engine of the host, or a path. The
            working directory is bound in it. A script is run by the ``python3`` of the image, or by *python*.
        bind: More files or directories of the host in the container: ``"/data"``, ``"/data:/mnt"``,
            ``"/data:/mnt:ro"``.
        given_in: Where the values come from that were not typed, for people who read the job: option -> file and line.
        anyway: Whether to submit a script that its text keeps from running as it should, such as one for Slurm.

    """

    command: str | Sequence[str]
    args: Sequence[str] = ()
    _: KW_ONLY
    mem: str | int | None = None
    gpus: int = 1
    on: str | None = None
    nodes: int | None = None
    device: DeviceFilter | str | Sequence[str] | None = None
    device_type: str | Sequence[str] | None = None
    exclusive: bool = False
    preference: Preference | str | None = None
    time_limit: str | float | None = None
    signal: EarlySignal | str | None = None
    name: str | None = None
    env: Mapping[str, str] | Sequence[str] | None = None
    cwd: str | os.PathLike[str] | None = None
    priority: Priority | str = "normal"
    pool: str = ""
    requeue: bool = True
    cap: bool = True
    pty: bool | Window = False
    warm: bool = False
    python: str | None = None
    environment: str | None = None
    after: str | int | Dependency | Sequence[str | int | Dependency] = ()
    begin: str | datetime | None = None
    hold: bool = False
    dedupe: str | None = None
    retries: int = 0
    retry_on: str | Sequence[RetryOn] | None = None
    mem_retries: int | None = None
    on_end: str | Sequence[str] = ()
    on_fail: str | Sequence[str] = ()
    array: str | Array | None = None
    sweep: Mapping[str, Sequence[object]] | Sequence[str] = ()
    each_line: str | os.PathLike[str] | None = None
    at_once: int | None = None
    max_failures: int | None = None
    tags: Sequence[str] = ()
    git: bool | None = None
    separate_stderr: bool = False
    output: str | None = None
    error: str | None = None
    snapshot: bool | str | os.PathLike[str] | CodeWith | None = None
    snapshot_allow: Sequence[str] = ()
    keep: Sequence[str] = ()
    probe: str | None = None
    cpus: str | float | None = None
    cpu_mem: str | int | None = None
    visible: Visible | str | None = None
    stop_on_nan: bool = False
    stop_when_stalled: str | float | None = None
    container: str | None = None
    bind: str | Sequence[str] = ()
    given_in: Mapping[str, str] | None = None
    anyway: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class JobEdit:
    """Changes to a waiting job. None leaves a field unchanged. The fields have the forms of JobRequest.

    ``"none"`` removes a time limit, a signal, a preference, device types, dependencies, the limits *cpus* and
    *cpu_mem* or the concurrency limit of an array (*at_once*), ``"now"`` an earliest start, ``"any"`` named devices, an
    empty *pool* the pool. A job without a time limit gets the limit of its new pool. A *mem* of ``"auto"`` is what
    earlier runs of the job's script needed. After an array has started, only *at_once* can be changed.

    *on_end* and *on_fail* replace all targets of their kind; ``"none"`` removes these.
    """

    mem: str | int | None = None
    gpus: int | None = None
    device: DeviceFilter | str | Sequence[str] | None = None
    device_type: str | Sequence[str] | None = None
    exclusive: bool | None = None
    preference: Preference | str | None = None
    time_limit: str | float | None = None
    signal: EarlySignal | str | None = None
    name: str | None = None
    priority: Priority | str | None = None
    pool: str | None = None
    after: str | int | Dependency | Sequence[str | int | Dependency] | None = None
    begin: str | datetime | None = None
    retries: int | None = None
    retry_on: str | Sequence[RetryOn] | None = None
    mem_retries: int | None = None
    at_once: int | str | None = None
    cpus: str | float | None = None
    cpu_mem: str | int | None = None
    on_end: str | Sequence[str] | None = None
    on_fail: str | Sequence[str] | None = None

    def __bool__(self) -> bool:
        """Return whether any field changes."""
        return any(getattr(self, name) is not None for name in self.__slots__)


def _unchanged(value: Any) -> Any:
    return value


#: The values of a request that are one field of the spec each: the name of the field, and what reads the value.
_FIELDS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "gpus": ("gpus", _unchanged),
    "nodes": ("nodes", _unchanged),
    "time_limit": ("time_limit_s", validation.time_limit),
    "signal": ("signal", validation.early_signal),
    "name": ("name", validation.name),
    "priority": ("priority", validation.priority),
    "pool": ("pool", _unchanged),
    "requeue": ("requeue", _unchanged),
    "cap": ("cap", _unchanged),
    "pty": ("pty", validation.terminal),
    "warm": ("warm", _unchanged),
    "tags": ("tags", lambda value: tags_of(validation.words("tags", value))),
    "separate_stderr": ("separate_stderr", _unchanged),
    "probe": ("probe", lambda value: validation.text_or_none("probe", value)),
    "cpus": ("cpus", host_limits.cpus_of),
    "cpu_mem": ("cpu_mem_bytes", host_limits.cpu_mem_of),
    "given_in": ("given_in", dict),
    "stop_on_nan": ("stop_on_nan", _unchanged),
    "stop_when_stalled": (
        "stop_when_stalled_s",
        lambda value: validation.duration_or_none("stop_when_stalled", value),
    ),
    "visible": ("visible", lambda value: validation.word("visible", value, Visible)),
    "container": ("container", lambda value: validation.text_or_none("container", value)),
}


def spec_fields(request: JobRequest | JobEdit, removable: Collection[str] = ()) -> dict[str, Any]:
    """Return the fields of the spec that *request* gives by one value each. None gives no field.

    The word ``none`` is None for the values that are *removable*.

    Raises:
        BadRequest: some values are malformed. It has all faults.

    """
    faults = validation.Faults()
    given = {name: value for name in _FIELDS if (value := getattr(request, name, None)) is not None}
    found = {
        _FIELDS[name][0]: None
        if value == validation.NONE and name in removable
        else faults.of(name, _FIELDS[name][1], value)
        for name, value in given.items()
    }
    faults.check()
    return found
