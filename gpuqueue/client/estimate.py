"""Estimates what a script needs before it runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from gpuqueue.client import estimates
from gpuqueue.errors import BadRequest, HistoryUnreachable, Unreachable
from gpuqueue.model import validation
from gpuqueue.model.device import DeviceKind
from gpuqueue.model.job_spec import Account
from gpuqueue.system.command_line import command_of, working_directory
from gpuqueue.system.environment import travelling
from gpuqueue.system.git_checkout import CheckoutReader

if TYPE_CHECKING:
    from gpuqueue.client.devices import Devices
    from gpuqueue.client.history import History
    from gpuqueue.estimate.dry_run import DryRun, Estimate, Request
    from gpuqueue.estimate.past import Past, Script

#: The largest number of jobs to read: the account's own, and those of all users. A search of all users' commands
#: reads the history back to the age ``ANYBODYS``.
OWN_JOBS, ANYBODYS_JOBS, ANYBODYS = 200, 200, timedelta(days=90)
#: The largest number of steps and of batch sizes.
MOST_STEPS, MOST_BATCHES = 1000, 20


class Estimator:
    """Estimates what a script needs, from the history and from a dry run."""

    def __init__(self, account: Account, history: History, devices: Devices, headroom_bytes: int = 0) -> None:
        self._account, self._history, self._devices, self._headroom_bytes = account, history, devices, headroom_bytes

    def __call__(  # noqa: PLR0913 - one argument for each option
        self,
        script: str,
        args: Sequence[str] = (),
        *,
        history: bool = True,
        dry_run: bool | None = None,
        steps: int = 3,
        timeout: str | float = 600.0,
        ram: str | int | None = None,
        batch_sizes: Sequence[int] = (),
        batch_option: str = "--batch-size",
        python: str | None = None,
        cwd: str | os.PathLike[str] | None = None,
    ) -> Estimate:
        """Return what the ``.py`` file *script* needs on a GPU, from earlier runs or from a dry run on this CPU.

        Args:
            script: The script's path.
            args: The script's arguments.
            history: Whether to use earlier runs.
            dry_run: Whether to run the script for a few steps. None means only if the history has no answer.
            steps: Optimizer steps of a dry run. For a script without an optimizer, forward passes of its model.
            timeout: The time limit of each dry run: seconds, or a duration such as ``"10m"``.
            ram: Host memory limit of a dry run: bytes, or a size such as ``"8G"``. By default 4/5 of the free memory.
            batch_sizes: Make one more dry run for each size, with *batch_option* and the size as last arguments.
            batch_option: The script's option for its batch size.
            python: The interpreter. By default that of the active environment, as in ``client.jobs.submit``.
            cwd: The working directory. By default the current directory.

        Raises:
            BadRequest: an argument is malformed, or the script does not exist.
            DryRunFailed: the script failed, or its memory could not be counted.
            DryRunTimeout: the script made no step within *timeout*.
            HistoryUnreachable: the history is unreachable, and *dry_run* is False.

        """
        request = _request(script, args, steps=steps, timeout=timeout, ram=ram, python=python, cwd=cwd)
        sizes = _sizes(batch_sizes)
        found = self._of_history(request, needed=dry_run is False) if history else _nothing_yet(request)
        answered = not sizes and found.past is not None and found.past.suffices
        if dry_run is False or (dry_run is None and answered):
            return found
        return _with_dry_runs(found, request, sizes, batch_option, self._measured())

    def _measured(self) -> tuple[int, str] | None:
        """Return the largest measured CUDA context of the GPUs, in bytes, with the model of that device.

        None if that of one of them was not measured, because the job may run there, or if no GPU is known.
        """
        try:
            gpus = [status.device for status in self._devices.list() if status.device.kind is DeviceKind.GPU]
        except Unreachable:
            return None
        known = [(gpu.context_bytes, gpu.name) for gpu in gpus if gpu.context_bytes is not None]
        return max(known, default=None) if len(known) == len(gpus) else None

    def _of_history(self, request: Request, *, needed: bool) -> Estimate:
        """Return an estimate with the figures of the history, or with a note on why there are none."""
        from gpuqueue.estimate.past import Script  # noqa: PLC0415 - lazy import for startup time
        from gpuqueue.learning.past_run import code_of  # noqa: PLC0415 - as above

        estimate, git = _nothing_yet(request), CheckoutReader(Path(request.cwd)).seen()
        script = Script(
            path=str(Path(request.cwd) / request.script),
            args=request.args,
            account=self._account,
            code=None if git is None else code_of(None, git.commit, dirty=git.dirty),
            interpreter=request.interpreter,
        )
        try:
            past = self._past(script)
        except HistoryUnreachable as error:
            if needed:
                raise
            return estimate.noted(f"the history could not be asked: {error}")
        if past is None:
            return estimate.noted("the history knows no run of this script that shows its need on a GPU")
        return replace(estimate, past=past)

    def _past(self, asked: Script) -> Past | None:
        from gpuqueue.estimate.past import past_of  # noqa: PLC0415 - lazy import for startup time

        name, headroom_bytes = Path(asked.path).name, self._headroom_bytes
        own = past_of(asked, self._history.search(user=asked.account.name, text=name, limit=OWN_JOBS), headroom_bytes)
        if own is not None and own.suffices:
            return own
        anybodys = self._history.search(text=name, since=datetime.now(timezone.utc) - ANYBODYS, limit=ANYBODYS_JOBS)
        return past_of(asked, anybodys, headroom_bytes) or own


def _request(
    script: str,
    args: Sequence[str],
    *,
    steps: int,
    timeout: str | float,
    ram: str | int | None,
    python: str | None,
    cwd: str | os.PathLike[str] | None,
) -> Request:
    """Return the dry run that the arguments of an estimate describe.

    Raises:
        BadRequest: an argument is malformed, or the script does not exist.

    """
    from gpuqueue.estimate.dry_run import Request, usual_ram_bytes  # noqa: PLC0415 - lazy import for startup time

    directory = working_directory(validation.path_or_none("cwd", cwd))
    words = validation.words("args", args)
    ram_bytes = validation.size_or_none("ram", ram)
    return Request(
        interpreter=_interpreter(script, words, directory, validation.path_or_none("python", python)),
        script=script,
        args=words,
        cwd=str(directory),
        env=travelling(os.environ),
        steps=_steps(steps),
        timeout_s=_limit_s(timeout),
        ram_bytes=usual_ram_bytes() if ram_bytes is None else ram_bytes,
    )


def _nothing_yet(request: Request) -> Estimate:
    from gpuqueue.estimate.dry_run import Estimate  # noqa: PLC0415 - lazy import for startup time

    return Estimate(script=request.script, args=request.args)


def _with_dry_runs(
    estimate: Estimate, request: Request, sizes: Sequence[int], batch_option: str, measured: tuple[int, str] | None
) -> Estimate:
    """Return *estimate* with the dry run *request*, and one more for each batch size of *sizes*.

    *measured* is a CUDA context in bytes and the model of the device on which it was measured.
    """
    from gpuqueue.estimate.dry_run import Batch, dry_run  # noqa: PLC0415 - lazy import for startup time
    from gpuqueue.learning.rule import rounded_up  # noqa: PLC0415 - lazy import for startup time
    from gpuqueue.model.framework_memory import cuda_bytes  # noqa: PLC0415 - as above

    context_bytes, model = measured or (None, None)

    def counted_of(one: Request) -> DryRun:
        return replace(dry_run(one), cuda_bytes=cuda_bytes(context_bytes), cuda_measured_on=model)

    counted = counted_of(request)
    estimates.remember(Path(request.cwd, request.script), request.args, rounded_up(counted.need_bytes))
    batches = tuple(
        Batch(size=size, dry_run=counted_of(replace(request, args=(*request.args, batch_option, str(size)))))
        for size in sizes
    )
    return replace(estimate, dry_run=counted, batches=batches)


def _interpreter(script: str, args: Sequence[str], directory: Path, python: str | None) -> str:
    """Return the interpreter that runs *script*: *python*, or that of the active environment.

    Raises:
        BadRequest: the script or the interpreter does not exist, or the script is not a Python script.

    """
    if not os.path.exists(directory / script):  # noqa: PTH110 - Path.exists raises on a name that is too long
        raise BadRequest(f"no such file: {script} (in {directory}): name a script that is there")
    _, _, interpreter = command_of(script, args, cwd=directory, python=python)
    if interpreter is None:
        raise BadRequest(f"{script} is no .py file: only a Python script can be estimated")
    return interpreter


def _steps(value: int) -> int:
    if not 1 <= validation.count("steps", value) <= MOST_STEPS:
        raise BadRequest(f"steps must be from 1 to {MOST_STEPS}, not {value}")
    return value


def _limit_s(value: str | float) -> float:
    limit_s = validation.duration_or_none("timeout", value)
    if limit_s is None or limit_s <= 0:
        raise BadRequest("the timeout must be above 0")
    return limit_s


def _sizes(value: Sequence[int]) -> tuple[int, ...]:
    sizes = tuple(validation.count("batch_sizes", each) for each in value)
    if len(sizes) > MOST_BATCHES or any(each < 1 for each in sizes):
        raise BadRequest(f"batch_sizes must be at most {MOST_BATCHES} numbers from 1 up")
    return sizes
