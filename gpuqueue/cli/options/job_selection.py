"""Commands that change several jobs: their selection, the confirmation, and a line of output for each job."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import click

from gpuqueue.cli.completion.candidates import ended_ids, live_ids, tags, users
from gpuqueue.cli.options.add import Option, with_options
from gpuqueue.client import Client
from gpuqueue.client.selection import Chosen, StateFilter, Which
from gpuqueue.console import print_message
from gpuqueue.errors import BadRequest, GpuQueueError, Unreachable
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.job import JobState
from gpuqueue.model.job_ref import JobName
from gpuqueue.text.sanitize import brief, short

F = TypeVar("F", bound=Callable[..., Any])
#: Changes one job, and returns the line to print, if any.
Act = Callable[[Client, str], str | None]

#: Most jobs that are shown before the confirmation.
SHOWN = 5
#: Exit code after the answer no.
NOTHING_DONE = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """The user's selection of jobs: by name, or by filters."""

    ids: tuple[str, ...]
    user: str | None
    name: str | None
    state: str | None
    tag: str | None
    all_jobs: bool
    yes: bool
    #: For `retry` only: the states in which the jobs ended, and the earliest time of submission.
    ends: tuple[str, ...] = ()
    since: str | None = None

    @property
    def by_filter(self) -> bool:
        """Return whether the jobs are selected by filters."""
        filters = (self.user, self.name, self.tag, self.state, self.since)
        return self.all_jobs or bool(self.ends) or any(each is not None for each in filters)

    def check(self, verb: str) -> None:
        """Check that the selection has either names or filters.

        Raises:
            BadRequest: It has both, or neither.

        """
        if self.by_filter and self.ids:
            raise BadRequest("name jobs, or choose them by --user, --name, --tag, --state or --all: not both")
        if not self.by_filter and not self.ids:
            raise BadRequest(f"name the jobs: gpuqueue {verb} 12 14-19, or choose them: --name, --user, --all")


def ids(*states: str) -> Callable[[F], F]:
    """Return the argument for several jobs; completion offers live jobs in *states*, or all live jobs.

    A malformed name is reported when it is processed, so that it does not block the other names.
    """
    return click.argument("ids", metavar="ID…", nargs=-1, shell_complete=live_ids(*states))


def chosen(*states: str, with_state: bool = False) -> Callable[[F], F]:
    """Return a decorator that adds the job argument and the filter options; *with_state* adds ``--state``."""
    options = [ids(*states), *_filters()]
    if with_state:
        which = click.Choice([StateFilter.WAITING.value, StateFilter.RUNNING.value])
        options.insert(3, click.option("-s", "--state", "state", type=which, help="Only waiting or only running jobs."))
    return with_options(options)


def chosen_ended() -> Callable[[F], F]:
    """Return a decorator that adds the job argument and the filter options for jobs that have ended."""
    ends = [state.value for state in JobState if state.is_end]
    which = f"Jobs that ended in one of these states: {', '.join(ends)}. Repeatable. Default: failed and lost."
    return with_options(
        [
            click.argument("ids", metavar="ID…", nargs=-1, shell_complete=ended_ids),
            *_filters(),
            click.option("-s", "--state", "ends", multiple=True, metavar="STATE", type=click.Choice(ends), help=which),
            click.option("--since", metavar="WHEN", help="Jobs submitted since: 7d, 12h, yesterday, 2026-11-01."),
        ]
    )


def _filters() -> list[Option]:
    return [
        click.option("-u", "--user", metavar="NAME", help="Jobs of this user.", shell_complete=users),
        click.option("-n", "--name", metavar="TEXT", help="Jobs of this name or pattern: train, 'train*'."),
        click.option("--tag", metavar="WORD", help="Jobs with this tag.", shell_complete=tags),
        click.option("--all", "all_jobs", is_flag=True, help="All your jobs; with --user, all jobs of that user."),
        click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation."),
    ]


def act_on(verb: str, selection: Selection, act: Act, *, state: StateFilter | None = None) -> None:
    """Call *act* for each selected job, print the results, and exit with the highest exit code.

    *state* is the state of the jobs that filters select, unless ``--state`` gives one.
    """
    selection.check(verb)
    with Client() as client:
        if not selection.by_filter:
            sys.exit(on_each(client, selection.ids, act, verb=verb))
        find = partial(client.jobs.choose, state=selection.state or state)
        sys.exit(on_each(client, filtered(client, verb, selection, find), act))


def filtered(client: Client, verb: str, selection: Selection, find: Callable[..., Sequence[Chosen]]) -> list[str]:
    """Return the names of the jobs that *find* returns for the filters, or end the command without confirmation."""
    if selection.user is not None:
        client.jobs.must_own(selection.user)
    found = find(user=selection.user, name=selection.name, tag=selection.tag)
    if not found:
        print_message("gpuqueue", f"no job matches: there is nothing to {verb}")
    elif not selection.yes and not _agreed(verb, found):
        sys.exit(print_message("gpuqueue", "nothing was changed", NOTHING_DONE))
    return [each.name for each in found]


def on_each(
    client: Client,
    words: Sequence[str],
    act: Act,
    *,
    which: Which = Which.LIVE,
    last_first: bool = False,
    verb: str | None = None,
) -> int:
    """Call *act* for each job that *words* name, also after failures; return the highest exit code.

    *which* selects the jobs of a range of ids. *last_first* reverses the order. *verb* is the command, if it has the
    filters that a word without digits may mean.

    Raises:
        Unreachable: The store does not answer. The other jobs are not tried.

    """
    names: list[str] = []
    code = 0
    for word in words:
        try:
            names += client.jobs.named(word, which=which)
        except BadRequest as error:
            code = max(code, _reported(error if verb is None else _with_filter(verb, word, error)))
        except GpuQueueError as error:
            code = max(code, _reported(error))
    for name in reversed(names) if last_first else names:
        try:
            line = act(client, name)
            if line is not None:
                click.echo(line)
        except GpuQueueError as error:
            code = max(code, _reported(error))
    return code


def _with_filter(verb: str, word: str, error: BadRequest) -> BadRequest:
    """Return the error for a word that is no id, with the filter that it may mean. Ids begin with a digit."""
    if word.lower() == "all":
        return BadRequest(f"{brief(word)} is no job: gpuqueue {verb} --all takes all your jobs")
    if word[:1].isdigit() or not word.strip():
        return error
    return BadRequest(
        f"{brief(word)} is no job: gpuqueue {verb} --name {shlex.quote(word)} takes the jobs of that name"
    )


def _reported(error: GpuQueueError) -> int:
    """Print the error of one job and return its exit code; raise it if the store does not answer."""
    if isinstance(error, Unreachable):
        raise error
    return print_message("gpuqueue", str(error), error.exit_code)


def _agreed(verb: str, found: Sequence[Chosen]) -> bool:
    """Show the jobs and return whether the user confirms the change.

    Raises:
        BadRequest: There is no terminal to ask on.

    """
    count = _counted(found)
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise BadRequest(f"this would {verb} {count}, and there is no terminal to ask on: add --yes")
    for each in found[:SHOWN]:
        job = each.job
        members = f", {_members(_members_in(each))}" if job.tally is not None else ""
        line = f"  {short(each.name)}  {short(job.spec.name)}  {job.spec.account.name}  {job.state}{members}"
        click.echo(line, err=True)
    if len(found) > SHOWN:
        click.echo(f"  and {len(found) - SHOWN} more", err=True)
    return _yes(f"{verb} {count}?")


def confirmed(what: str) -> None:
    """Ask whether to do *what*, and end the command if the user does not want it.

    Raises:
        BadRequest: There is no terminal to ask on.

    """
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise BadRequest(f"this would {what}, and there is no terminal to ask on: add --yes")
    if not _yes(f"{what}?"):
        sys.exit(print_message("gpuqueue", "nothing was changed", NOTHING_DONE))


def _yes(question: str) -> bool:
    """Ask until the answer is valid; Enter alone means no. Ctrl-C starts a new line after the terminal's ``^C``."""
    while True:
        try:
            answer = click.prompt(f"{question} [y/N]", default="", show_default=False, err=True).strip().lower()
        except click.Abort:
            click.echo("", err=True)
            raise
        if answer in {"y", "yes", "n", "no", ""}:
            return answer in {"y", "yes"}
        click.echo("answer y or n", err=True)


def _counted(found: Sequence[Chosen]) -> str:
    """Return the number of jobs in words: ``12 jobs (3 of them arrays with 1 200 members)``.

    Ended members do not count. Several parts of one array count as one array.
    """
    arrays = {each.job.id: each.job for each in found if each.job.tally is not None}
    number = len({each.job.id for each in found})
    jobs = f"{number} job{'' if number == 1 else 's'}"
    if not arrays:
        return jobs
    which = "an array" if number == 1 else f"{len(arrays)} of them {'an array' if len(arrays) == 1 else 'arrays'}"
    return f"{jobs} ({which} with {_members(sum(map(_members_in, found)))})"


def _members(number: int) -> str:
    return f"{number:,}".replace(",", " ") + f" member{'' if number == 1 else 's'}"


def _members_in(chosen: Chosen) -> int:
    """Return the number of chosen members that have not ended; 0 for a job that is no array."""
    tally, array = chosen.job.tally, chosen.job.spec.array
    if tally is None or array is None:
        return 0
    part = JobName.parse(chosen.name).part
    return len(array) - sum(tally.ended.values()) if part is None else len(part)
