"""Submits jobs: turns a request into a complete spec, and sends it to the queue."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from gpuqueue.client.connection import Connection
from gpuqueue.client.placement import UuidsOf, counts_use, placed
from gpuqueue.errors import BadRequest, GpuQueueError, StoreUnreachable, SubmittedInPart, Unreachable
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import later
from gpuqueue.model import validation
from gpuqueue.model.dependencies import Waits
from gpuqueue.model.job import Job
from gpuqueue.model.job_request import JobRequest, spec_fields
from gpuqueue.model.job_spec import ASKED, AUTO, Account, Checkout, JobSpec
from gpuqueue.model.notification import Notification
from gpuqueue.model.retries import MEM_TIMES, Retries
from gpuqueue.settings.settings import Settings
from gpuqueue.system.account import current_umask
from gpuqueue.system.command_line import STAYS, Travel, command_of, name_of, script_to_judge, working_directory
from gpuqueue.system.environment import given_variables, travelling
from gpuqueue.system.git_checkout import CheckoutReader
from gpuqueue.text.sanitize import plain
from gpuqueue.text.units import MIB

if TYPE_CHECKING:
    import hashlib
    from pathlib import Path

    from gpuqueue.client import (
        devices,
        estimates,
        memory,
        notifications,
        placeholders,
        reads,
        retry,
        snapshots,
    )
    from gpuqueue.client.memory import OpenMemory
    from gpuqueue.codec import wire
    from gpuqueue.codec.wire import Plain
    from gpuqueue.model import file_patterns, output_file, python_environments, times
    from gpuqueue.model.array import Array
    from gpuqueue.queue.lease import DeviceStatus
    from gpuqueue.queue.requests import Ends
    from gpuqueue.system import output_link, slurm_script
else:  # needed by few submits
    hashlib = later("hashlib")
    devices = later("gpuqueue.client.devices")
    estimates = later("gpuqueue.client.estimates")
    file_patterns = later("gpuqueue.model.file_patterns")
    memory = later("gpuqueue.client.memory")
    notifications = later("gpuqueue.client.notifications")
    output_file = later("gpuqueue.model.output_file")
    output_link = later("gpuqueue.system.output_link")
    placeholders = later("gpuqueue.client.placeholders")
    python_environments = later("gpuqueue.model.python_environments")
    reads = later("gpuqueue.client.reads")
    retry = later("gpuqueue.client.retry")
    slurm_script = later("gpuqueue.system.slurm_script")
    snapshots = later("gpuqueue.client.snapshots")
    times = later("gpuqueue.model.times")
    wire = later("gpuqueue.codec.wire")


T = TypeVar("T")
_U = TypeVar("_U", bound=Unreachable)

#: Most jobs of one list.
MAX_MANY = 1000

#: What to do after a submit whose answer was lost for good.
UNCONFIRMED = "The job may be queued all the same: look at gpuqueue queue before you submit it again"
#: The line about a job without a device kind, where no host has found a GPU.
ON_CPU = "no GPU is known here: the job runs on the CPU. With --device gpu it waits for one"


@dataclass(frozen=True, kw_only=True, slots=True)
class SiteAnswers:
    """What only the site can say about a request: the devices of names, and its targets.

    ``environments`` returns the names of the Python environments of each host, None for a host that does not say.
    """

    uuids_of: UuidsOf
    notifications: Callable[[JobRequest], tuple[Notification, ...]]
    environments: Callable[[], Iterable[Sequence[str] | None]]


def spec_of(
    connection: Connection, request: JobRequest, note: Callable[[str], None] | None = None, *, dry: bool = False
) -> JobSpec:
    """Return the spec of *request*, completed from this process, the settings and the site.

    *note* is called with lines about the script, the code that travels and the memory. If *dry*, no code is kept.

    Raises:
        BadRequest: a value is malformed, or the script does not exist or cannot run as it should.
        Refused: the site accepts no URLs, or the code cannot travel.

    """
    spec = made_here(connection, request, note, dry=dry)
    spec = with_max_failures(with_mem_retries(spec, connection.settings), connection.settings)
    if spec.is_whole:  # its memory is the engine's
        return spec
    if counts_use(spec, connection.settings):
        spec = memory.with_expected_utilisation(connection, spec)
    if len(spec.argv) > 1 or spec.script is not None:
        spec = memory.with_expected_duration(connection, spec)
    left_open = open_memory(request, spec)
    if left_open is None and (note is None or len(spec.argv) == 1):  # nobody wants advice on a program without a script
        return spec
    return memory.with_memory(connection, spec, left_open, note)


def made_here(
    connection: Connection, request: JobRequest, note: Callable[[str], None] | None = None, *, dry: bool = False
) -> JobSpec:
    """Return the spec of *request* as :func:`spec_of` does, but for what the site decides at each submit.

    Without a memory of its own it has 1 MiB, see :func:`open_memory`.
    """
    site = SiteAnswers(
        uuids_of=lambda names: devices.uuids_of(connection, names),
        notifications=lambda asked: _notifications(connection, asked),
        environments=lambda: environments_of(connection.queue.devices.all()),
    )
    with_code = request.snapshot is not None and request.snapshot is not False
    travel = Travel(with_code=True) if with_code else STAYS
    spec = completed(request, connection.settings, connection.account, site, lambda: connection.queue, travel, note)
    return snapshots.kept(connection, request, spec, note, dry=dry) if with_code else spec


def body_of(made: JobSpec, left_open: OpenMemory | None, default_mem_bytes: int | None) -> Plain:
    """Return the body of a submit over the service, a ``NewJob``, that asks for *made*.

    It has no account, which is the caller's. A memory that is *left_open* is decided by the service.
    """
    # What has its default is left out: an older service refuses fields that are new.
    body = {name: value for name, value in wire.to_stored(made).items() if name not in {"account", "ticket"}}
    if left_open is not None or made.mem_source == ASKED:  # the service knows then
        body.pop("mem_source", None)
    if left_open is not None:
        del body["mem_bytes"]
        known = {
            "auto_mem": left_open.auto or None,
            "estimated_mem_bytes": left_open.estimated_bytes,
            "default_mem_bytes": default_mem_bytes,
        }
        body |= {name: value for name, value in known.items() if value is not None}
    return body


def _retries(request: JobRequest) -> Retries:
    """Return the retries of a request. A job that must not run twice is not repaired either."""
    found = validation.retries(request.retries, request.retry_on, request.mem_retries)
    if request.mem_retries and not request.requeue:
        raise BadRequest("a job that must not run twice is not repaired: leave out --mem-retries or --no-requeue")
    return found


def with_mem_retries(spec: JobSpec, settings: Settings) -> JobSpec:
    """Return *spec* with the site's number of runs after a lack of device memory, if the submitter gave none."""
    if spec.retries.mem_times is not None or settings.mem_retries == MEM_TIMES:
        return spec
    return replace(spec, retries=replace(spec.retries, mem_times=settings.mem_retries))


def with_max_failures(spec: JobSpec, settings: Settings) -> JobSpec:
    """Return *spec* with the site's number of failures after which the rest of an array is held, if it has none."""
    if spec.array is None or spec.array.max_failures is not None or settings.max_failures is None:
        return spec
    return replace(spec, array=replace(spec.array, max_failures=settings.max_failures))


def open_memory(request: JobRequest, spec: JobSpec) -> OpenMemory | None:
    """Return what the submitter knows about the memory of *spec* if the *request* leaves it open, else None."""
    if request.mem is not None and request.mem != AUTO:
        return None
    return memory.OpenMemory(auto=request.mem == AUTO, estimated_bytes=estimates.known(spec))


def completed(
    request: JobRequest,
    settings: Settings,
    account: Account,
    site: SiteAnswers,
    meanwhile: Callable[[], object],
    travel: Travel = STAYS,
    note: Callable[[str], None] | None = None,
) -> JobSpec:
    """Return the spec of *request*, as :func:`spec_of` does, less a memory that is left open: that is 1 MiB.

    *meanwhile* is called while git runs. *travel* says whether the job's code, and its environment, are for another
    directory or machine. *note* is called with remarks about the script.
    """
    if request.keep:
        from gpuqueue.files.ignore import rules_of  # noqa: PLC0415 - lazy import: few jobs keep files

        rules_of(file_patterns.of_request(request.keep, with_code=travel.with_code))
    directory = working_directory(validation.path_or_none("cwd", request.cwd))
    checkout = CheckoutReader(directory) if (settings.git if request.git is None else request.git) else None
    argv, script, interpreter = _command(request, directory, travel)
    device, placement = placed(request, site.uuids_of)
    asked = None if request.mem == AUTO else request.mem
    meanwhile()  # its imports take as long as git, which runs in parallel
    fields = {"name": name_of(argv, script), **spec_fields(request)}
    fields |= _outputs(request, fields["name"], account, directory, travel)
    spec = JobSpec(
        argv=argv,
        cwd=str(directory),
        env={**travelling(os.environ, is_far=travel.is_far), **given_variables(request.env)},
        account=account,
        mem_bytes=MIB if asked is None else validation.mem_bytes(asked),
        mem_source=None if asked is None else ASKED,
        device=settings.default_device if device is None else device,
        placement=placement,
        umask=current_umask(),
        script=script,
        interpreter=interpreter,
        environment=_environment(request, site),
        waits=_waits(request),
        retries=_retries(request),
        array=_array(request),
        binds=_binds(request, directory),
        notifications=site.notifications(request),
        git=checkout.seen() if checkout is not None else None,
        **fields,
    )
    if spec.array is not None:
        placeholders.check(spec)
    judged = script_to_judge(spec)
    if judged is not None:
        slurm_script.check(*judged, spec, request, note)
    return spec


def _command(request: JobRequest, directory: Path, travel: Travel) -> tuple[tuple[str, ...], str | None, str | None]:
    """Return the command of *request* in *directory*, its script and its interpreter."""
    return command_of(
        request.command if isinstance(request.command, str) else validation.words("command", request.command),
        validation.words("args", request.args),
        cwd=directory,
        python=validation.path_or_none("python", request.python),
        travel=travel,
        is_named=request.environment is not None or request.container is not None,
        added=getattr(request.snapshot, "files", ()),
    )


def _binds(request: JobRequest, directory: Path) -> tuple[str, ...]:
    """Return the binds of a request, whose sources are taken from *directory*."""
    if not request.bind:
        return ()
    from gpuqueue.model import container  # noqa: PLC0415 - lazy import: few jobs have binds

    given = validation.words("bind", (request.bind,) if isinstance(request.bind, str) else request.bind)
    return tuple(dict.fromkeys(container.bind_of(text, str(directory)) for text in given))


def _array(request: JobRequest) -> Array | None:
    """Return the array of a request. A mapping has values; texts may name files of values."""
    sweeps = validation.sweeps(request.sweep)
    if sweeps and not isinstance(request.sweep, Mapping):
        sweeps = tuple(map(placeholders.with_file, sweeps))
    path = validation.path_or_none("each_line", request.each_line)
    if path is not None:
        sweeps = (placeholders.each_line(path), *sweeps)
    return validation.array(request.array, sweeps, request.at_once, request.max_failures)


def _outputs(request: JobRequest, name: str, account: Account, directory: Path, travel: Travel) -> dict[str, Any]:
    """Return the fields of the spec for the links to the logs of *request*. One file for both is one log.

    Raises:
        BadRequest: a name is malformed, no link can be made there, or the code travels.

    """
    given = {"output": request.output, "error": request.error}
    if given["error"] == given["output"]:
        given["error"] = None
    fields: dict[str, Any] = {} if given["error"] is None else {"separate_stderr": True}
    for field, value in given.items():
        text = validation.text_or_none(field, value)
        if text is not None:
            if travel.with_code:
                raise BadRequest(output_file.NOT_HERE)
            fields[field] = pattern = output_file.pattern_of(text, option=f"--{field}", name=name, user=account.name)
            output_file.check_members(pattern, is_array=bool(request.array or request.sweep or request.each_line))
            _check_place(directory, pattern)
    return fields


def _check_place(directory: Path, pattern: str) -> None:
    """Check that a link of this name can be made in *directory*, as far as the name is known."""
    within, name = output_file.place_of(pattern)
    above = directory / within
    if not os.path.isdir(above):  # noqa: PTH112 - Path.is_dir fails on a name that is too long
        missing = plain(str(above))
        raise BadRequest(f"the link to the output needs a directory that is missing: mkdir -p {missing}")
    file = "" if name is None else os.path.join(above, name)  # noqa: PTH118
    if not output_link.is_free(file):
        raise BadRequest(f"{plain(file)} exists, and the link to the output replaces no file: name another, or move it")


def _waits(request: JobRequest) -> Waits:
    return Waits(
        after=validation.dependencies(request.after),
        begin_at=None if request.begin is None else times.begin(request.begin),
        hold=request.hold,
        dedupe=request.dedupe,
    )


def queued(
    connection: Connection,
    spec: JobSpec,
    found: Callable[[Job], None] | None,
    *,
    nonce: str | None = None,
    note: Callable[[str], None] | None = None,
    taken: int | None = None,
) -> Job:
    """Submit *spec*, and submit again if the reply was lost. The same *nonce* yields the same job for ten minutes.

    Every submit comes through here, with a service and without one. *note* is called with a line if the job runs on a
    CPU because no GPU was found. The job gets the id *taken*, if there is one.

    Raises:
        TakenExpired: no job has the id *taken*, and none gets it any more.
        JobNotFound: it is a retry of a job that does not exist.
        Impossible: no host can enforce its limits, or none hands jobs to its engine.
        Refused: it is a retry of a job that has not ended, or that this account may not run again.

    """
    from gpuqueue.queue.requests import (  # noqa: PLC0415 - lazy import for startup time
        Found,
        Unknown,
        new_nonce,
    )

    if spec.retry_of is not None:
        retry.check_retried(connection, spec.retry_of)
    if spec.is_whole or (spec.cpus, spec.cpu_mem_bytes) != (None, None):
        devices.check_limits(connection, spec)
    nonce = nonce or new_nonce()
    sign = None if connection.signer is None else connection.signer.signed
    on_cpu = None if note is None else partial(note, ON_CPU)

    def submit(ends: Ends | None = None) -> Job:
        send = partial(
            connection.queue.requests.submit, spec, nonce=nonce, ends=ends, sign=sign, on_cpu=on_cpu, taken=taken
        )
        return _twice(send)

    try:
        try:
            return submit()
        except Unknown as unknown:
            return reads.with_ends(connection, unknown, submit)
    except Found as twin:
        job = reads.get(connection, twin.job_id)
        if found is not None:
            found(job)
        return job


def prepared(
    make: Callable[[JobRequest], tuple[JobSpec, T]], requests: Sequence[JobRequest]
) -> list[tuple[JobSpec, T]]:
    """Return what *make* returns for each of *requests*. What git says of a directory is read once.

    Raises:
        BadRequest: there are too many.

    """
    if len(requests) > MAX_MANY:
        raise BadRequest(f"a list has at most {MAX_MANY} jobs: submit these {len(requests)} in several lists")
    checkouts: dict[object, Checkout | None] = {}
    made = []
    for request in requests:
        place = str(request.cwd), request.git, request.snapshot in {None, False}
        if place in checkouts:
            spec, more = make(replace(request, git=False))
            made.append((replace(spec, git=checkouts[place]), more))
        else:
            spec, more = make(request)
            if spec.snapshot is None:  # a snapshot has a commit of its own
                checkouts[place] = spec.git
            made.append((spec, more))
    return made


def queued_many(
    connection: Connection,
    specs: Sequence[JobSpec],
    *,
    nonce: str | None = None,
    note: Callable[[str], None] | None = None,
) -> list[Job | GpuQueueError]:
    """Submit *specs* in one round trip to the store, and return the job of each, or why it was refused.

    The same *nonce* with the same list yields the same jobs for ten minutes.
    """
    from gpuqueue.queue.requests import new_nonce  # noqa: PLC0415 - lazy import for startup time

    nonce = nonce or new_nonce()
    nonces = [hashlib.sha256(f"{nonce} {number}".encode()).hexdigest() for number in range(len(specs))]
    sign = None if connection.signer is None else connection.signer.signed
    on_cpu = None if note is None else partial(note, ON_CPU)
    plain_ones = [place for place, spec in enumerate(specs) if not is_checked_first(spec)]

    def send() -> list[Job | None]:
        words = [specs[place] for place in plain_ones], [nonces[place] for place in plain_ones]
        return connection.queue.requests.submit_many(*words, sign=sign, on_cpu=[on_cpu] * len(plain_ones))

    jobs = dict(zip(plain_ones, _twice(send), strict=True))

    def outcome(place: int) -> Job | GpuQueueError:
        try:  # what was not queued is queued by itself, which says why not
            return jobs.get(place) or queued(connection, specs[place], None, nonce=nonces[place], note=note)
        except GpuQueueError as error:
            return error

    return [outcome(place) for place in range(len(specs))]


def all_queued(outcomes: Sequence[Job | GpuQueueError]) -> list[Job]:
    """Return the jobs of *outcomes*.

    Raises:
        SubmittedInPart: some were refused.

    """
    jobs = [each for each in outcomes if isinstance(each, Job)]
    refusals = {place: each for place, each in enumerate(outcomes) if isinstance(each, GpuQueueError)}
    if refusals:
        place, first = next(iter(refusals.items()))
        raise SubmittedInPart(
            f"{len(refusals)} of {len(outcomes)} jobs were refused, the others are queued. The first is number "
            f"{place + 1} of the list: {first}",
            [each if isinstance(each, Job) else None for each in outcomes],
            refusals,
        )
    return jobs


def is_checked_first(spec: JobSpec) -> bool:
    """Return whether a submit of *spec* asks the site something first."""
    return spec.retry_of is not None or spec.is_whole or (spec.cpus, spec.cpu_mem_bytes) != (None, None)


def _twice(send: Callable[[], T]) -> T:
    """Call *send*, and again if the store did not answer.

    Raises:
        StoreUnreachable: it does not answer now either. It says whether something may have been queued all the same.

    """
    try:
        return send()
    except StoreUnreachable as first:
        try:
            return send()
        except StoreUnreachable as second:
            if first.is_unanswered or second.is_unanswered:
                raise unconfirmed(second) from second
            raise


def unconfirmed(error: _U) -> _U:
    """Return *error*, of a submit that was sent and not answered, with what to do before it is submitted again."""
    return type(error)(f"{error}. {UNCONFIRMED}", is_unanswered=True)


def environments_of(devices: Iterable[DeviceStatus]) -> list[Sequence[str] | None]:
    """Return the names of the environments of each device's host, None for a host that does not say."""
    return [each.environments for each in devices]


def _environment(request: JobRequest, site: SiteAnswers) -> str | None:
    name = validation.text_or_none("environment", request.environment)
    if name is None:
        return None
    if request.python is not None:
        raise BadRequest("--python and --environment exclude each other: give one")
    python_environments.check_known(name, site.environments())
    return name


def _notifications(connection: Connection, request: JobRequest) -> tuple[Notification, ...]:
    if not request.on_end and not request.on_fail:
        return ()
    return notifications.notifications_of(connection, request.on_end, request.on_fail)
