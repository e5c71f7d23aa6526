"""What a shell offers after TAB: commands, options, and what lives in the store right now.

Whoever presses TAB has not asked for anything yet. So whatever goes wrong completes nothing, and says nothing.
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

#: The variable in which a shell says that it wants to know what fits; the name is click's.
VARIABLE = "_GPUQUEUE_COMPLETE"
#: How long the store may take, in seconds. Nobody waits longer for TAB.
LIMIT_S = 0.6
#: Of how many jobs the ids are offered, the oldest first.
MOST_JOBS = 1000
#: Of how many ended jobs.
MOST_ENDED = 50
#: Longest explanation beside an id, in characters.
WIDTH = 40


def complete(group: click.Group, program: str) -> int:
    """Answer the shell's question in VARIABLE; return the exit code."""
    with contextlib.redirect_stderr(io.StringIO()):
        try:
            from gpuqueue.cli.completion.shells import KINDS  # noqa: PLC0415 - as in _seen

            shell, _, wish = os.environ.get(VARIABLE, "").partition("_")
            if shell not in KINDS or wish != "complete":
                return 1
            click.echo(KINDS[shell](group, {}, program, VARIABLE).complete().encode())
        except Exception:  # noqa: BLE001 - the shell asks, in the middle of somebody's typing: silence is the answer
            return 1
    return 0


def one_of(values: Iterable[str]) -> Completer:
    """Return what completes one of fixed words."""
    words = tuple((str(value), "") for value in values)
    return lambda _ctx, _param, incomplete: _starting(incomplete, words)


def listed(one: Completer) -> Completer:
    """Return what completes the last of several values with commas between them, of which *one* completes each."""

    def offered(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
        before, comma, last = incomplete.rpartition(",")
        named = before.split(",")
        items = [item for item in one(ctx, param, last) if item.value not in named]
        for item in items:
            item.value = f"{before}{comma}{item.value}"
        return items

    return offered


def live_ids(*states: str) -> Completer:
    """Return what completes the id of a job that has not ended; only of one in one of *states*, if any is named."""

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
    """Complete the id of a job that ended badly not long ago, the last one first."""
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
    """Complete for which job another waits, and behind a colon for which of its endings."""
    job_id, colon, _ = incomplete.partition(":")
    if not colon:
        return live_ids()(ctx, param, incomplete)
    from gpuqueue.model.dependencies import Condition  # noqa: PLC0415 - as in _seen

    return _starting(incomplete, ((f"{job_id}:{each}", "") for each in Condition))


def users(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> Items:
    """Complete the name of a user who has a job in the queue."""
    return _starting(incomplete, ((name, "") for name in sorted({job.spec.account.name for job in _jobs()})))


def device_names(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> Items:
    """Complete a device as ``drain`` takes it: by its index if it is on this host, else by ``HOST:INDEX``.

    Whoever has begun with a host or a UUID goes on with that.
    """

    def names(client: Client, each: DeviceStatus) -> list[str]:
        here = [str(each.device.index)] if each.host == client.settings.host else []
        return [*here, f"{each.host}:{each.device.index}", each.device.uuid]

    found = _seen(lambda client: [(names(client, each), _where(each)) for each in client.devices()])
    return _starting(
        incomplete, ((name, where) for every, where in found or () for name in (every if incomplete else every[:1]))
    )


def placements(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Complete on which device a job shall run: a kind, or devices as :func:`device_names` has them."""
    return one_of(("gpu", "cpu", "any"))(ctx, param, incomplete) + listed(device_names)(ctx, param, incomplete)


def models(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> Items:
    """Complete a device's model by a word of its name: those that tell one model from another stand first."""
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


def files(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> Items:
    """Let the shell complete a file, as it always does."""
    return [shell_completion.CompletionItem(incomplete, type="file")]


def directories(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> Items:
    """Let the shell complete a directory."""
    return [shell_completion.CompletionItem(incomplete, type="dir")]


def _where(each: DeviceStatus) -> str:
    return f"{each.host}, {each.device.name}"


def _jobs() -> list[Job]:
    return _seen(lambda client: client.jobs(limit=MOST_JOBS)) or []


def _ended() -> list[Job]:
    from gpuqueue.model.job import JobState  # noqa: PLC0415 - as in _seen

    badly = (JobState.FAILED, JobState.LOST, JobState.CANCELLED)
    records = _seen(lambda client: client.history(states=badly, limit=MOST_ENDED), of_book=True)
    return [record.job for record in records or ()]


def _devices() -> list[DeviceStatus]:
    return _seen(lambda client: client.devices()) or []


def _seen(ask: Callable[[Client], T], *, of_book: bool = False) -> T | None:
    """Ask the store, or the book; None if it does not answer in time."""
    from gpuqueue.client import Client  # noqa: PLC0415 - a shell that completes an option asks no store
    from gpuqueue.errors import GpuQueueError  # noqa: PLC0415 - as above
    from gpuqueue.system.timeout_call import Look  # noqa: PLC0415 - as above

    with contextlib.suppress(GpuQueueError), Client() as client:
        client.book if of_book else client.queue  # noqa: B018 - the import may take long, and is no fault of the store
        return Look(lambda: ask(client), LIMIT_S).seen()
    return None


def _starting(incomplete: str, offered: Iterable[tuple[str, str]]) -> Items:
    """Return what begins with *incomplete*; a name that a shell would obey or break up is nothing to offer."""
    from gpuqueue.text.sanitize import plain, short  # noqa: PLC0415 - as in _seen

    return [
        shell_completion.CompletionItem(value, help=short(" ".join(words.split()), WIDTH) or None)
        for value, words in offered
        if value.startswith(incomplete) and value == plain(value) and not set(value) & set(" \t,;'\"$`\\&|<>()")
    ]
