"""The ending of the run of a whole job, from the exit of its follower and from what that learned of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone

from gpuqueue.engines.whole_job import Account
from gpuqueue.model.device import Peak, PeakSource
from gpuqueue.model.run import Ending, EndingKind, NoteKind, RunDevice, RunNote
from gpuqueue.text.sanitize import in_one_line
from workers.measure.active_runs import LiveRun
from workers.run.directory import Exit
from workers.whole.work import End

#: Ends that the engine names by a word of its own, and what they are here.
_KINDS = {
    **dict.fromkeys(("timeout", "deadline"), EndingKind.TIMED_OUT),
    **dict.fromkeys(("cancelled",), EndingKind.CANCELLED),
    **dict.fromkeys(("out_of_memory",), EndingKind.OUT_OF_MEMORY),
    # The engine took the machines away, so the job is handed over once more.
    **dict.fromkeys(("boot_fail", "node_fail", "preempted", "revoked"), EndingKind.PREEMPTED),
}


def exit_of(run: LiveRun, end: Exit) -> Exit:
    """Return the exit of the job that the follower of *run* followed, where *end* is that of the follower.

    A follower that ended by itself has written down how the job ended. One that did not was killed, and the job may
    live: the run is lost, and the next attempt finds the job.
    """
    known = End.read(run.directory.path)
    if known is None:
        if end.ending.kind in {EndingKind.EXITED, EndingKind.SIGNALLED}:
            return replace(end, ending=Ending.lost("the process that followed its job ended before the job"))
        return replace(end, max_rss_bytes=None)
    account = known.account
    return replace(
        end,
        ending=_ending(known) if end.ending.kind in {EndingKind.EXITED, EndingKind.SIGNALLED} else end.ending,
        duration_s=_duration_s(account, end.duration_s),
        max_rss_bytes=None,
        notes=(*end.notes, *_notes(run, known)),
    )


def _ending(known: End) -> Ending:
    account, engine = known.account, "Slurm"
    is_placed = account is None or account.word != "failed" or account.nodes is not None or known.code is not None
    if known.refused or not is_placed:
        never = f"{engine} could not start job {known.ref}: no machine of its fits what was asked for"
        return Ending.refused(in_one_line(known.refused or never))
    if account is None:
        if known.code is None:
            return Ending.lost(f"{engine} does not say how job {known.ref} ended")
        return Ending.from_status(known.code)
    status = -account.signal if account.signal is not None else account.exit_code
    kind = _KINDS.get(account.word)
    if kind is not None:
        return Ending.stopped(kind, status or None, f"{engine} says {account.word.replace('_', ' ')}")
    if account.word == "completed":
        return Ending.from_status(0)
    return Ending.from_status(known.code or status or 1)


def _duration_s(account: Account | None, followed_s: float | None) -> float | None:
    """Return how long the job ran at the engine, without its wait there; *followed_s* if that is not known."""
    if account is None or account.started_s is None or account.ended_s is None:
        return followed_s
    return max(0.0, account.ended_s - account.started_s)


def _notes(run: LiveRun, known: End) -> Sequence[RunNote]:
    """Return the note on where the job ran, and when."""
    account = known.account
    if account is None or account.nodes is None:
        return ()
    items = [f"job {known.ref}", account.nodes]
    items += [_time(each) for each in (account.started_s, account.ended_s) if each is not None]
    name = run.held.devices[0].name or "an engine"
    return (RunNote(kind=NoteKind.AT_ENGINE.value, items=tuple(map(in_one_line, items)), owner=name),)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%SZ")


def with_memory(run: LiveRun, devices: tuple[RunDevice, ...]) -> tuple[RunDevice, ...]:
    """Return *devices*, with the GPU memory that the accounting of the engine has."""
    known = End.read(run.directory.path)
    used_bytes = known.account.gpu_mem_bytes if known is not None and known.account is not None else None
    if used_bytes is None:
        return devices
    peak = Peak(bytes=used_bytes, source=PeakSource.NVML_SAMPLED)
    return tuple(replace(device, peak=peak) for device in devices)
