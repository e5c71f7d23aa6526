"""Commands that do the same to several jobs: which ones, the question before, and a line for each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from gpuqueue.cli.completion.candidates import live_ids, tags, users
from gpuqueue.client.changing import Changing
from gpuqueue.client.choosing import Choosing, Chosen, Stand, Which
from gpuqueue.console import say
from gpuqueue.errors import BadRequest, GpuQueueError, Unreachable
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.job_ref import JobName
from gpuqueue.text.sanitize import short

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=Choosing)
#: Does it to one job, and returns what to say of that.
Act = Callable[[C, str], str]

#: Of the jobs that a filter finds, so many are shown before the question.
SHOWN = 5
#: Exit code of who said no.
NOTHING_DONE = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """What a person typed: words that name jobs, or what the jobs have in common."""

    ids: tuple[str, ...]
    user: str | None
    name: str | None
    stand: str | None
    tag: str | None
    all_jobs: bool
    yes: bool

    @property
    def by_filter(self) -> bool:
        """Return whether the jobs are chosen by what they have in common."""
        return self.all_jobs or any(each is not None for each in (self.user, self.name, self.tag, self.stand))

    def check(self, verb: str) -> None:
        """Refuse what means nothing, or may mean two things.

        Raises:
            BadRequest: it does.

        """
        if self.by_filter and self.ids:
            raise BadRequest("name jobs, or choose them by --user, --name, --tag, --state or --all: not both")
        if not self.by_filter and not self.ids:
            raise BadRequest(f"which jobs? Name them: gpuqueue {verb} 12 14-19, or choose: --name, --user, --all")


def ids(*states: str) -> Callable[[F], F]:
    """Return the argument that takes several words; a shell offers the ids of jobs in *states*, or of all that live.

    What is malformed is told when its turn comes: one bad word must not keep the others from being done.
    """
    return click.argument("ids", metavar="ID…", nargs=-1, shell_complete=live_ids(*states))


def chosen(*states: str, stands: bool = False) -> Callable[[F], F]:
    """Add the words that name jobs, and the options that choose them; with *stands* also by where they stand."""
    options = [
        ids(*states),
        click.option("-u", "--user", metavar="NAME", help="This user's jobs.", shell_complete=users),
        click.option("-n", "--name", metavar="TEXT", help="Jobs of this name: train, or a pattern such as 'train*'."),
        click.option("--tag", metavar="WORD", help="Jobs with this tag.", shell_complete=tags),
        click.option("--all", "all_jobs", is_flag=True, help="All your jobs; with --user all of theirs."),
        click.option("-y", "--yes", is_flag=True, help="Do not ask."),
    ]
    if stands:
        which = click.Choice([Stand.WAITING.value, Stand.RUNNING.value])
        options.insert(3, click.option("-s", "--state", "stand", type=which, help="Only jobs that wait, or run."))

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def act_on(verb: str, selection: Selection, act: Act[Changing], *, stand: Stand | None = None) -> None:
    """Do *act* to each job that is meant, say what came of it, and leave with the worst exit code.

    *stand* is where jobs must stand for this, if a filter chooses them.
    """
    selection.check(verb)
    with Changing() as client:
        if not selection.by_filter:
            sys.exit(on_each(client, selection.ids, act))
        if selection.user is not None:
            client.must_own(selection.user)
        found = client.choose(
            user=selection.user, name=selection.name, stand=selection.stand or stand, tag=selection.tag
        )
        if not found:
            say("gpuqueue", f"no job matches: there is nothing to {verb}")
            return
        if not selection.yes and not _agreed(verb, found):
            sys.exit(say("gpuqueue", "nothing was changed", NOTHING_DONE))
        sys.exit(on_each(client, [each.name for each in found], act))


def on_each(
    client: C, words: Sequence[str], act: Act[C], *, which: Which = Which.LIVE, last_first: bool = False
) -> int:
    """Do *act* to each job that *words* name; one that fails does not keep the others from it. Return the worst code.

    *which* jobs of a range are of interest; *last_first*, it is done to the last of them first.

    Raises:
        Unreachable: the store does not answer: it would not for the others.

    """
    names: list[str] = []
    code = 0
    for word in words:
        try:
            names += client.named(word, which=which)
        except GpuQueueError as error:
            code = max(code, _told(error))
    for name in reversed(names) if last_first else names:
        try:
            click.echo(act(client, name))
        except GpuQueueError as error:
            code = max(code, _told(error))
    return code


def _told(error: GpuQueueError) -> int:
    """Say what went wrong with one job, and return the exit code for that; a store that is away is no such thing."""
    if isinstance(error, Unreachable):
        raise error
    return say("gpuqueue", str(error), error.exit_code)


def _agreed(verb: str, found: Sequence[Chosen]) -> bool:
    """Show what would be changed and ask.

    Raises:
        BadRequest: there is nobody to ask.

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


def _yes(question: str) -> bool:
    """Ask until it is answered; Enter alone is no. A Ctrl-C begins a new line: this one has its ``^C``."""
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
    """Return how many jobs *found* are: ``12 jobs (3 of them arrays with 1 200 members)``.

    Of an array those members count that have not ended; several parts of one are one array.
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
    """Return how many members of an array were chosen that have not ended; 0 for what is no array."""
    tally, array = chosen.job.tally, chosen.job.spec.array
    if tally is None or array is None:
        return 0
    part = JobName.parse(chosen.name).part
    return len(array) - sum(tally.ended.values()) if part is None else len(part)
