"""How a request becomes a job."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from gpuqueue.client import parse_dependencies, validation
from gpuqueue.client.looking import Looking
from gpuqueue.client.noticing import Noticing
from gpuqueue.client.placing import placed
from gpuqueue.errors import BadRequest, StoreUnreachable
from gpuqueue.model.array import Array
from gpuqueue.model.dependencies import Dependency, Waits
from gpuqueue.model.device import DeviceWish
from gpuqueue.model.job import Job, JobSpec, Level
from gpuqueue.model.placement import Preference
from gpuqueue.model.retries import RetryOn
from gpuqueue.model.tags import tags_of
from gpuqueue.model.terminal_size import Window
from gpuqueue.model.warning_signal import EarlySignal
from gpuqueue.system.account import current_umask
from gpuqueue.system.command_line import command_of, name_of, working_directory
from gpuqueue.system.environment import travelling
from gpuqueue.system.git_checkout import CheckoutLook
from gpuqueue.text.units import MIB, parse_bytes


class Submitting(Looking, Noticing):
    """Puts jobs into the queue."""

    def submit(  # noqa: PLR0913 - each is one thing that a person may say about a job
        self,
        command: str | Sequence[str],
        args: Sequence[str] = (),
        *,
        mem: str | int | None = None,
        gpus: int = 1,
        device: DeviceWish | str | Sequence[str] | None = None,
        device_type: str | Sequence[str] | None = None,
        exclusive: bool = False,
        preference: Preference | str | None = None,
        time_limit: str | float | None = None,
        signal: EarlySignal | str | None = None,
        name: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        level: Level = Level.NORMAL,
        pool: str = "",
        requeue: bool = True,
        cap: bool = True,
        pty: bool | Window = False,
        warm: bool = False,
        python: str | None = None,
        after: str | int | Dependency | Sequence[str | int | Dependency] = (),
        begin: str | datetime | None = None,
        hold: bool = False,
        dedupe: str | None = None,
        retries: int = 0,
        retry_on: str | Sequence[RetryOn] | None = None,
        on_end: str | Sequence[str] = (),
        on_fail: str | Sequence[str] = (),
        found: Callable[[Job], None] | None = None,
        array: str | Array | None = None,
        sweep: Mapping[str, Sequence[object]] | Sequence[str] = (),
        at_once: int | None = None,
        tags: Sequence[str] = (),
        git: bool | None = None,
        separate_stderr: bool = False,
    ) -> Job:
        """Put a job into the queue and return it; with *array* or *sweep* many of them as one.

        Args:
            command: A script's path (``"train.py"``), or a whole command line as a list.
            args: The script's arguments.
            mem: Memory that must be free on each device: bytes, or a size such as ``"6G"`` (binary).
            gpus: Number of devices, all on one host and of one kind.
            device: ``"gpu"``, ``"cpu"`` or ``"any"``; if nothing is said, a GPU wherever the queue knows of one. Or the
                devices that it may run on, each an index on this host, ``"HOST:INDEX"``, or a UUID or its start.
            device_type: Only devices of this model, or of one of these, by words of the name: ``"A100"``.
            exclusive: Alone on each device; then ``mem`` may be left out, and all of its memory is meant.
            preference: ``"spread"`` or ``"pack"``: on the device with the most free memory, or with the least that is
                enough; the site's way by default.
            time_limit: Seconds, or a duration such as ``"2h"``; the job is ended when it is over.
            signal: Sent to its first process some time before that, such as ``"USR1@120"``: 120 seconds before.
            name: What to call it; the script's name by default.
            env: Variables on top of this process's environment, which travels with the job.
            cwd: Where it runs; the current directory by default.
            level: Priority band.
            pool: Only devices of this pool.
            requeue: Whether it may run again after its worker and its processes vanished.
            cap: Whether its frameworks are told to stay within ``mem``, where the worker's site does that.
            pty: Whether its output is to be a terminal, as large as this process's; its log is what it writes there. Or
                a terminal of that size, which people may type on if it says so.
            warm: Whether an interpreter that waits on the worker with ``torch`` imported may run the script.
            python: The interpreter of a ``.py`` script; that of the active environment by default.
            after: Jobs that must have ended first: ids, or texts such as ``"12:any"``.
            begin: The earliest start: a time, or text such as ``"2h"`` or ``"16:00"``.
            hold: Whether it is held from the start.
            dedupe: A key: while a job of this account with it waits or runs, that job is returned, and no new one made.
            retries: How often it runs again after it failed.
            retry_on: After which endings: ``"failed,lost"`` or several RetryOn.
            on_end: Who is told once it has ended for good: names of the site's targets, mail addresses, Apprise's URLs,
                or ``"command:WORDS"``, which runs where the job ran.
            on_fail: The same, unless it succeeded.
            found: Called with the job that was found by its *dedupe* key.
            array: Indexes such as ``"0-99"``, or ``"0-99%8"`` for at most 8 at once.
            sweep: Names and their values, ``{"lr": [1e-3, 1e-4]}`` or ``["lr=1e-3,1e-4", "seed=0..4"]``: a member
                for each combination; ``{lr}`` in the arguments becomes its value.
            tags: Words to find it by.
            at_once: How many members of an array or a sweep at most at once.
            separate_stderr: Whether standard error goes into a file of its own, beside the log.
            git: Whether to note what *cwd* has checked out; as the site's settings say by default.

        Raises:
            BadRequest: something is malformed, or there is no such script.
            JobNotFound: nobody knows a job that it is to come after.
            Impossible: no known device could ever run it, or a job that it is to come after ended otherwise.
            Refused: a limit leaves no room for it, now or ever, or the site takes no URLs.

        """
        directory = working_directory(validation.path_or_none("cwd", cwd))
        checkout = self._look_at(directory, git=git)
        command_line, script, chosen = command_of(
            command if isinstance(command, str) else validation.words("command", command),
            validation.words("args", args),
            cwd=directory,
            python=validation.path_or_none("python", python),
        )
        wish, placement = placed(
            device, device_type, preference, exclusive=exclusive, sized=mem is not None, uuids_of=self._uuids
        )
        _ = self.queue  # its imports take as long as git does
        spec = JobSpec(
            argv=command_line,
            cwd=str(directory),
            env={**travelling(os.environ), **validation.environment(env)},
            account=self.account,
            mem_bytes=MIB if placement.whole else self._mem_bytes(mem, pool),
            gpus=gpus,
            device=self.settings.default_device if wish is None else wish,
            placement=placement,
            time_limit_s=validation.time_limit(time_limit),
            signal=validation.early_signal(signal),
            name=name_of(command_line, script) if name is None else name,
            level=level,
            pool=pool,
            requeue=requeue,
            cap=cap,
            umask=current_umask(),
            warm=warm,
            pty=_terminal(pty),
            script=script,
            interpreter=chosen,
            waits=Waits(
                after=parse_dependencies.dependencies(after),
                begin_at=parse_dependencies.begin(begin),
                hold=hold,
                dedupe=dedupe,
            ),
            retries=parse_dependencies.retries(retries, retry_on),
            array=_array(array, sweep, at_once),
            notices=self._notices(on_end, on_fail),
            tags=tags_of(validation.words("tags", tags)),
            separate_stderr=separate_stderr,
            git=checkout.seen() if checkout is not None else None,
        )
        return self._queued(spec, found)

    def _look_at(self, directory: Path, *, git: bool | None) -> CheckoutLook | None:
        """Begin to look at what *directory* has checked out, if that is wanted; *git* None: as the site wants it."""
        wanted = self.settings.git if git is None else git
        return CheckoutLook(directory) if wanted else None

    def _queued(self, spec: JobSpec, found: Callable[[Job], None] | None) -> Job:
        """Submit *spec*; once more where the reply got lost: the same nonce makes the same job."""
        from gpuqueue.queue.requests import new_nonce  # noqa: PLC0415 - as in queue
        from gpuqueue.queue.submit_errors import Found, Unknown  # noqa: PLC0415 - as in queue

        nonce = new_nonce()

        def submit(ends: Mapping[int, bool] | None = None) -> Job:
            try:
                return self.queue.submit(spec, nonce=nonce, ends=ends)
            except StoreUnreachable:
                return self.queue.submit(spec, nonce=nonce, ends=ends)

        try:
            try:
                return submit()
            except Unknown as unknown:  # they ended, and the queue has forgotten them; or never were
                return submit(self._ends(unknown.job_ids))
        except Found as twin:
            job = self.get(twin.job_id)
            if found is not None:
                found(job)
            return job

    def _mem_bytes(self, mem: str | int | None, pool: str) -> int:
        if mem is None:
            default_bytes = self.settings.default_mem_bytes
            if default_bytes is None:
                default_bytes = self.queue.limits().of_pool(str(pool)).default_mem_bytes
            if default_bytes is None:
                raise BadRequest("say how much device memory the job needs: --mem 6G")
            return default_bytes
        return parse_bytes(mem) if isinstance(mem, str) else mem


def _terminal(pty: bool | Window) -> Window | None:  # noqa: FBT001 - it is one thing that submit is told
    """Return the terminal that is asked for; one that is only asked for is as large as ours."""
    if isinstance(pty, Window):
        return pty
    return Window.ours() if pty else None


def _array(
    array: str | Array | None, sweep: Mapping[str, Sequence[object]] | Sequence[str], at_once: int | None
) -> Array | None:
    """Return the array that is asked for, None for a single job.

    Raises:
        BadRequest: what is asked for makes no sense.

    """
    if at_once is not None:
        validation.count("at_once", at_once)
    if isinstance(sweep, Mapping):
        pairs = ((name, validation.values_of(f"sweep[{name!r}]", values)) for name, values in sweep.items())
        sweep = [f"{name}={','.join(values)}" for name, values in pairs]
    axes = validation.words("sweep", sweep)
    if isinstance(array, Array):
        if axes or at_once is not None:
            raise BadRequest("an Array says all about itself: leave out sweep and at_once")
        return array
    return Array.asked(validation.text_or_none("array", array), axes, at_once)
