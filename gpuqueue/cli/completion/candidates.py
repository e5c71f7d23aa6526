"""Completion candidates after TAB: commands, options, and values from the store.

An error must not disturb the user's input: it yields no candidates and prints nothing.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import click

from gpuqueue.lazy.imports import later

if TYPE_CHECKING:
    from click import shell_completion

    from gpuqueue.client import Client
    from gpuqueue.model.job import Job
    from gpuqueue.queue.lease import DeviceStatus
else:
    shell_completion = later("click.shell_completion")

T = TypeVar("T")
Items: TypeAlias = "list[shell_completion.CompletionItem]"
Completer = Callable[[click.Context, click.Parameter, str], Items]

#: The environment variable by which a shell requests completion. click defines the name.
VARIABLE = "_GPUQUEUE_COMPLETE"
#: Longest time to wait for the store or the history, in seconds.
LIMIT_S = 0.6
#: Most live jobs that are offered, oldest first.
MOST_JOBS = 1000
#: Most ended jobs that are offered.
MOST_ENDED = 50
#: Longest description of a candidate, in columns.
WIDTH = 40


def complete(group: click.Group, program: str) -> int:
    """Answer the completion request in VARIABLE and return the exit code."""
    with contextlib.redirect_stderr(io.StringIO()):
        try:
            from gpuqueue.cli.completion.shells import KINDS  # noqa: PLC0415 - as in _seen

            shell, _, device_filter = os.environ.get(VARIABLE, "").partition("_")
            if shell not in KINDS or device_filter != "complete":
                return 1
            click.echo(KINDS[shell](group, {}, program, VARIABLE).complete().encode())
        except Exception:  # noqa: BLE001 - an error must not disturb the user's input
            return 1
    return 0


def one_of(values: Iterable[str]) -> Completer:
    """Return a completer for a fixed set of words."""
    words = tuple((str(value), "") for value in values)
    return lambda _ctx, _param, incomplete: _starting(incomplete, words)


def listed(one: Completer) -> Completer:
    """Return a completer for a comma-separated list; *one* completes its last value."""

    def offered(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
        before, comma, last = incomplete.rpartition(",")
        named = before.split(",")
        items = [item for item in one(ctx, param, last) if item.value not in named]
        for item in items:
            item.value = f"{before}{comma}{item.value}"
        return items

    return offered


def live_ids(*states: str) -> Completer:
    """Return a completer for ids of jobs that have not ended; with *states*, only of jobs in these."""

    def offered(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
        given = ctx.params.get(param.name or "")
        named = set(map(str, given)) if isinstance(given, tuple) else set()
        return _starting(
            incomplete,
            (
                (job.label, f"{job.state}, {job.spec.account.name}, {job.spec.name}")
                for job in _jobs()
                if job.label not in named and (not states or job.state.value in states)
            ),
        )

    return offered


def ended_ids(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Complete the id of a recent job that failed, was lost or was cancelled, newest first."""
    named = set(map(str, ctx.params.get(param.name or "") or ()))
    return _starting(
        incomplete,
        (
            (job.label, f"{job.state}, {job.spec.account.name}, {job.spec.name}")
            for job in _ended()
            if job.label not in named
        ),
    )


def awaited(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Complete a value of ``--after``: a job id, and its condition after a colon."""
    job_id, colon, _ = incomplete.partition(":")
    if not colon:
        return live_ids()(ctx, param, incomplete)
    from gpuqueue.model.dependencies import Condition  # noqa: PLC0415 - as in _seen

    return _starting(incomplete, ((f"{job_id}:{each}", "") for each in Condition))


def users(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> Items:
    """Complete the name of a user who has a job in the queue."""
    return _starting(incomplete, ((name, "") for name in sorted({job.spec.account.name for job in _jobs()})))


def device_names(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> Items:
    """Complete a device: its index if it is on this host, else ``HOST:INDEX``.

    If the word has begun, its ``HOST:INDEX`` and its UUID are candidates too.
    """

    def names(client: Client, each: DeviceStatus) -> list[str]:
        here = [str(each.device.index)] if each.host == client.settings.host else []
        return [*here, f"{each.host}:{each.device.index}", each.device.uuid]

    found = _seen(lambda client: [(names(client, each), _where(each)) for each in client.devices.list()])
    return _starting(
        incomplete, ((name, where) for every, where in found or () for name in (every if incomplete else every[:1]))
    )


def placements(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Complete a value of ``--device``: a device kind, or devices as in :func:`device_names`."""
    return one_of(("gpu", "cpu", "any"))(ctx, param, incomplete) + listed(device_names)(ctx, param, incomplete)


def models(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> Items:
    """Complete a device's model by a word of its name, last words first: they are the most specific."""
    found = _devices()
    words: dict[str, str] = {}
    for each in found:
        for word in reversed((each.device.name or "").split()):
            words.setdefault(word, each.device.name or "")
    return _starting(incomplete, words.items())


def tags(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> Items:
    """Complete a tag of a job in the queue."""
    return _starting(incomplete, ((tag, "") for tag in sorted({tag for job in _jobs() for tag in job.tags})))


def hosts(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> Items:
    """Complete the name of a host that serves devices."""
    return _starting(incomplete, ((host, "") for host in sorted({each.host for each in _devices()})))


def pools(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> Items:
    """Complete the name of a pool."""
    return _starting(incomplete, ((pool, "") for pool in sorted({each.pool for each in _devices()} - {""})))


def environments(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> Items:
    """Complete the name of a Python environment by those that hosts have."""
    where: dict[str, set[str]] = {}
    for each in _devices():
        for name in each.environments or ():
            where.setdefault(name, set()).add(each.host)
    return _starting(incomplete, ((name, ", ".join(sorted(where[name]))) for name in sorted(where)))


def files(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> Items:
    """Let the shell complete a file."""
    return [shell_completion.CompletionItem(incomplete, type="file")]


def directories(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> Items:
    """Let the shell complete a directory."""
    return [shell_completion.CompletionItem(incomplete, type="dir")]


def _where(each: DeviceStatus) -> str:
    return f"{each.host}, {each.device.name}"


def _jobs() -> list[Job]:
    return _seen(lambda client: client.jobs.list(limit=MOST_JOBS)) or []


def _ended() -> list[Job]:
    from gpuqueue.model.job import JobState  # noqa: PLC0415 - as in _seen

    badly = (JobState.FAILED, JobState.LOST, JobState.CANCELLED)
    records = _seen(lambda client: client.history.search(states=badly, limit=MOST_ENDED), of_database=True)
    return [record.job for record in records or ()]


def _devices() -> list[DeviceStatus]:
    return _seen(lambda client: client.devices.list()) or []


def _seen(ask: Callable[[Client], T], *, of_database: bool = False) -> T | None:
    """Query the store, or the history if *of_database*; return None if there is no answer in time."""
    from gpuqueue.client import Client  # noqa: PLC0415 - completing an option needs no store
    from gpuqueue.errors import GpuQueueError  # noqa: PLC0415 - as above
    from gpuqueue.system.timed_call import TimedCall  # noqa: PLC0415 - as above

    with contextlib.suppress(GpuQueueError), Client() as client:
        if client.service is None:
            client.database if of_database else client.queue  # noqa: B018 - keep slow imports out of the time limit
        return TimedCall(lambda: ask(client), LIMIT_S).result()
    return None


def _starting(incomplete: str, offered: Iterable[tuple[str, str]]) -> Items:
    """Return the candidates that begin with *incomplete*, without names that need quoting in a shell."""
    from gpuqueue.text.sanitize import plain, short  # noqa: PLC0415 - as in _seen

    return [
        shell_completion.CompletionItem(value, help=short(" ".join(words.split()), WIDTH) or None)
        for value, words in offered
        if value.startswith(incomplete) and value == plain(value) and not set(value) & set(" \t,;'\"$`\\&|<>()")
    ]
