"""Submits jobs."""

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
from gpuqueue.model.device import DeviceFilter
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
    """Submits jobs to the queue."""

    def submit(  # noqa: PLR0913 - one argument for each option of a job
        self,
        command: str | Sequence[str],
        args: Sequence[str] = (),
        *,
        mem: str | int | None = None,
        gpus: int = 1,
        device: DeviceFilter | str | Sequence[str] | None = None,
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
        """Submit a job and return it. With *array* or *sweep*, the job is an array of many members.

        Args:
            command: A script's path (``"train.py"``), or a whole command line as a list.
            args: The script's arguments.
            mem: Memory needed on each device: bytes, or a size such as ``"6G"`` (binary).
            gpus: Number of devices, all on one host and of one kind.
            device: ``"gpu"``, ``"cpu"`` or ``"any"``. Or the devices that the job may use, each an index on this host,
                ``"HOST:INDEX"``, a UUID or a prefix of one. By default the site's setting, else a GPU if one is known.
            device_type: Only devices of this model, or of one of these models, by words of the name: ``"A100"``.
            exclusive: Whether the job is alone on each of its devices. Without ``mem`` it gets all of their memory.
            preference: ``"spread"`` (the device with the most free memory) or ``"pack"`` (the device with the least
                memory that is enough). By default the site's setting.
            time_limit: Seconds, or a duration such as ``"2h"``. The job is ended when its time is over.
            signal: Signal sent to the job's first process before its time limit: ``"USR1@120"`` is 120 seconds before.
            name: The job's name. By default the name of the script.
            env: Variables added to this process's environment, which is passed to the job.
            cwd: The working directory. By default the current directory.
            level: The priority.
            pool: Only devices of this pool.
            requeue: Whether the job may run again after its worker and its processes vanished.
            cap: Whether to configure the job's frameworks to stay within ``mem``, if the worker's site does that.
            pty: Whether the job's output is a terminal, of the size of this process's terminal. Or a terminal size,
                which also says whether users may type on the terminal. The log is the terminal's output.
            warm: Whether the script works in a Python that has already imported ``torch``, so that it may start warm.
            python: The interpreter of a ``.py`` script. By default that of the active environment.
            after: Dependencies, the jobs that must end first: ids, or texts such as ``"12:any"``.
            begin: The earliest start: a time, or a text such as ``"2h"`` or ``"16:00"``.
            hold: Whether the job is held from the start.
            dedupe: A key. If a job of this account with this key waits or runs, that job is returned and no job is
                submitted.
            retries: How often the job runs again after it failed.
            retry_on: The endings that cause a retry: ``"failed,lost"`` or several RetryOn.
            on_end: Targets to notify after the job's final end: names of the site's targets, mail addresses or Apprise
                URLs.
            on_fail: Targets to notify after any final end but success.
            found: Called with the job that was found by its *dedupe* key.
            array: Indexes such as ``"0-99"``, or ``"0-99%8"`` for at most 8 members at a time.
            sweep: Names and their values, ``{"lr": [1e-3, 1e-4]}`` or ``["lr=1e-3,1e-4", "seed=0..4"]``. The array has
                a member for each combination. ``{lr}`` in the arguments is replaced by the value.
            tags: Words for finding the job.
            at_once: The largest number of members of an array or a sweep that run at a time.
            separate_stderr: Whether standard error goes into its own file, next to the log.
            git: Whether to record the git checkout of *cwd*. By default the site's setting.

        Raises:
            BadRequest: an argument is malformed, or the script does not exist.
            JobNotFound: a dependency does not exist.
            Impossible: no known device could ever run the job, or a dependency ended so that it is never satisfied.
            Refused: a limit forbids the job, now or ever, or the site accepts no URLs.

        """
        directory = working_directory(validation.path_or_none("cwd", cwd))
        checkout = self._look_at(directory, git=git)
        command_line, script, chosen = command_of(
            command if isinstance(command, str) else validation.words("command", command),
            validation.words("args", args),
            cwd=directory,
            python=validation.path_or_none("python", python),
        )
        device_filter, placement = placed(
            device, device_type, preference, exclusive=exclusive, sized=mem is not None, uuids_of=self._uuids
        )
        _ = self.queue  # its imports take as long as git, which runs in parallel
        spec = JobSpec(
            argv=command_line,
            cwd=str(directory),
            env={**travelling(os.environ), **validation.environment(env)},
            account=self.account,
            mem_bytes=MIB if placement.whole else self._mem_bytes(mem, pool),
            gpus=gpus,
            device=self.settings.default_device if device_filter is None else device_filter,
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
            notifications=self._notifications(on_end, on_fail),
            tags=tags_of(validation.words("tags", tags)),
            separate_stderr=separate_stderr,
            git=checkout.seen() if checkout is not None else None,
        )
        return self._queued(spec, found)

    def _look_at(self, directory: Path, *, git: bool | None) -> CheckoutLook | None:
        """Start reading the git checkout of *directory*, if *git* is True or is None and the site's setting is on."""
        wanted = self.settings.git if git is None else git
        return CheckoutLook(directory) if wanted else None

    def _queued(self, spec: JobSpec, found: Callable[[Job], None] | None) -> Job:
        """Submit *spec*, and submit again if the reply was lost. The same nonce yields the same job."""
        from gpuqueue.queue.requests import new_nonce  # noqa: PLC0415 - lazy import for startup time
        from gpuqueue.queue.submit_errors import Found, Unknown  # noqa: PLC0415 - lazy import for startup time

        nonce = new_nonce()

        def submit(ends: Mapping[int, bool] | None = None) -> Job:
            try:
                return self.queue.requests.submit(spec, nonce=nonce, ends=ends)
            except StoreUnreachable:
                return self.queue.requests.submit(spec, nonce=nonce, ends=ends)

        try:
            try:
                return submit()
            except Unknown as unknown:  # the dependencies ended and the queue has deleted them, or they never existed
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
                default_bytes = self.queue.rules.limits().of_pool(str(pool)).default_mem_bytes
            if default_bytes is None:
                raise BadRequest("say how much device memory the job needs: --mem 6G")
            return default_bytes
        return parse_bytes(mem) if isinstance(mem, str) else mem


def _terminal(pty: bool | Window) -> Window | None:  # noqa: FBT001 - one argument of submit
    """Return the size of the requested terminal. For True this is the size of this process's terminal."""
    if isinstance(pty, Window):
        return pty
    return Window.ours() if pty else None


def _array(
    array: str | Array | None, sweep: Mapping[str, Sequence[object]] | Sequence[str], at_once: int | None
) -> Array | None:
    """Return the requested array, or None for a single job.

    Raises:
        BadRequest: an argument is invalid.

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
