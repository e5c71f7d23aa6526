"""The options for notifications about a job's end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from gpuqueue.console import print_message
from gpuqueue.errors import GpuQueueError
from gpuqueue.lazy.imports import later

if TYPE_CHECKING:
    from click import shell_completion

    from gpuqueue.client import Client
    from gpuqueue.model.job import Job
else:
    shell_completion = later("click.shell_completion")


def targets(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[shell_completion.CompletionItem]:
    """Complete the names of the site's targets."""
    from gpuqueue.client import Client  # noqa: PLC0415 - only for shell completion

    found: set[str] = set()
    with contextlib.suppress(GpuQueueError), Client() as client:
        found = {name for each in client.jobs.senders() for name in each.targets} | set(client.settings.notify)
    return [shell_completion.CompletionItem(name) for name in sorted(found) if name.startswith(incomplete)]


def _option(name: str, when: str) -> Callable[[Any], Any]:
    return click.option(name, multiple=True, metavar="WHAT", help=when, shell_complete=targets)


#: Options of ``submit`` and ``run``.
NOTIFICATION_OPTIONS: list[Callable[[Any], Any]] = [
    _option("--on-end", "Notify when the job ends: a target, a mail address or a URL. Repeatable."),
    _option("--on-fail", "As --on-end, but only if the job does not succeed."),
]


def warn_if_nobody_sends(client: Client, job: Job) -> None:
    """Warn if *job* has notifications that no recorder can send."""
    if not job.spec.notifications:
        return
    with contextlib.suppress(GpuQueueError):
        trouble = client.jobs.nobody_sends()
        if trouble is not None:
            print_message("gpuqueue", trouble)
