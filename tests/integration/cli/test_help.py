"""The help texts, the suggestions for typing errors, and the output for programs."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from factories import make_offer, make_spec, serve
from site_of_one import Site

from gpuqueue.cli.main import COMMANDS, SECTIONS, commands
from workers.cli import worker_commands

#: Commands that only read, with the arguments for a JSON output once job 1 has ended.
READ = {
    "queue": [],
    "show": ["1"],
    "why": ["1"],
    "wait": ["1"],
    "history": [],
    "stats": [],
    "top": [],
    "gpus": [],
    "limits": [],
    "notify": [],
    "status": [],
    "doctor": [],
    "whoami": [],
    "audit": [],
    "snapshots": [],
}
#: Commands whose output is the job's own bytes or a shell script.
RAW = {"logs", "completion"}
ACT = {
    "submit",
    "run",
    "shell",
    "notebook",
    "attach",
    "exec",
    "fetch",
    "cancel",
    "hold",
    "release",
    "edit",
    "retry",
    "lost",
    "burst",
    "extend",
    "forward",
    "move",
    "tag",
    "note",
    "estimate",
    "probe",
    "simulate",
    "drain",
    "reserve",
    "resume",
    "up",
    "web",
    "down",
    "db",
    "serve",
    "install",
    "join",
    "uninstall",
    "login",
    "logout",
    "token",
    "cron",
    "mcp",
}
DOCS = Path(__file__).parents[3] / "docs"


def every_command() -> Iterator[tuple[str, click.Command]]:
    """Yield the words after ``gpuqueue`` and the command, for each command and subcommand."""
    context = click.Context(commands)
    for name in commands.list_commands(context):
        command = commands.get_command(context, name)
        assert command is not None
        yield name, command
        if isinstance(command, click.Group):
            yield from ((f"{name} {below}", each) for below, each in command.commands.items())


@pytest.mark.parametrize(("name", "command"), list(every_command()), ids=[name for name, _ in every_command()])
def test_every_help_has_examples_that_can_be_typed(name: str, command: click.Command) -> None:
    """Each help text has an example with this command and existing options."""
    text = command.get_help(click.Context(command, info_name=f"gpuqueue {name}"))

    _, _, below = text.partition("Examples:\n")
    examples = [line.strip() for line in below.partition("\n\n")[0].splitlines()]

    assert examples, text
    assert all(f"gpuqueue {name}" in line for line in examples), examples
    options = {option for each in command.params for option in each.opts}
    typed = {word for line in examples for word in line.partition(" -- ")[0].partition("|")[0].split()}
    assert {word for word in typed if re.fullmatch(r"--?[a-z][\w-]*", word)} <= options | {"-s"}


@pytest.mark.parametrize(
    ("name", "command"), [("", commands), *every_command()], ids=["", *(name for name, _ in every_command())]
)
def test_every_help_fits_a_terminal_of_80_columns(name: str, command: click.Command) -> None:
    """Help texts fit 80 columns. Click does not wrap lines that are marked as preformatted."""
    context = click.Context(command, info_name=f"gpuqueue {name}".strip(), terminal_width=80)

    assert [] == [line for line in command.get_help(context).splitlines() if len(line) > 80]


@pytest.mark.parametrize(
    ("name", "command"), [("", commands), *every_command(), ("", worker_commands), *worker_commands.commands.items()]
)
def test_no_help_names_a_file_that_only_a_checkout_has(name: str, command: click.Command) -> None:
    """Help texts name documentation pages by title, because an installation does not have the files."""
    text = " ".join(command.get_help(click.Context(command, info_name=name)).split())
    titles = {path.read_text().splitlines()[0].removeprefix("# ") for path in DOCS.rglob("*.md")}

    assert not re.search(r"docs/|\.md\b", text), text
    assert set(re.findall(r'"([^"]+)" in the documentation', text)) <= titles


@pytest.mark.parametrize(("name", "command"), list(every_command()), ids=[name for name, _ in every_command()])
def test_no_help_shows_a_technical_bound(name: str, command: click.Command) -> None:
    """Help texts have no technical bounds such as ``[default: 50; 1<=x<=1000000000]`` or INTEGER RANGE."""
    text = command.get_help(click.Context(command, info_name=name))

    assert not re.search(r"\d{7}|INTEGER", text), text


def test_the_help_of_edit_describes_edit() -> None:
    """The help of ``edit`` describes ``edit``. It used to have the defaults of ``submit``, which do not apply."""
    edit, submit = (
        " ".join((commands.get_command(click.Context(commands), name) or commands).get_help(context).split())
        for name in ("edit", "submit")
        for context in [click.Context(commands, terminal_width=80)]
    )

    for words in ("Default: gpu; cpu if the queue knows no GPU", "[default: failed,signalled,refused,lost]"):
        assert words in submit
        assert words not in edit
    for words in ("none removes them", "now: at once", "none removes it", "Omitted options change nothing"):
        assert words in edit


@pytest.mark.parametrize(("name", "command"), list(every_command()), ids=[name for name, _ in every_command()])
def test_every_example_is_understood(
    name: str, command: click.Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each example is parsed as by a shell and the command: all values are valid and none is missing."""
    monkeypatch.chdir(tmp_path)
    text = command.get_help(click.Context(command, info_name=f"gpuqueue {name}"))
    lines = text.partition("Examples:\n")[2].partition("\n\n")[0].splitlines()

    for line in lines:
        typed = line[line.index(f"gpuqueue {name}") :].removeprefix(f"gpuqueue {name}")
        words = re.split(r"   |[|>)&;]", typed)[0]  # the rest is a remark or shell syntax
        if not isinstance(command, click.Group):
            command.make_context(name, shlex.split(words))  # raises an error if the words are invalid


def test_every_command_stands_in_one_section_and_is_a_read_or_an_act() -> None:
    """Each command is in one section of the help, and is classified by its kind of output."""
    placed = [name for names in SECTIONS.values() for name in names]

    assert sorted(COMMANDS) == sorted(placed)
    assert sorted(COMMANDS) == sorted([*READ, *RAW, *ACT])


def test_help_as_a_word_is_the_option(site: Site) -> None:
    """``gpuqueue help`` is the same as ``--help``, also for one command, as in git. An unknown command is an error."""
    assert site.cli("--help").stdout == site.cli("help").stdout
    assert site.cli("submit", "--help").stdout == site.cli("help", "submit").stdout
    assert "No such command 'xyzzy'." in site.cli("help", "xyzzy", check=False).stderr


@pytest.mark.full
def test_every_read_command_answers_programs_and_readers_that_leave(site: Site) -> None:
    """``--json`` prints one JSON value without colour. Each command ends silently if the reader closes the pipe."""
    site.make_tables()
    serve(site.queue, make_offer(host=site.settings.host))
    site.start_recorder()
    site.queue.jobs.cancel(site.queue.requests.submit(make_spec()).id)
    site.until_recorded(1)

    site.queue.requests.submit(make_spec())

    for name, words in READ.items():
        printed = site.cli(name, *words, "--json", check=False)
        assert isinstance(json.loads(printed.stdout), (list, dict)), name
        assert "\x1b" not in printed.stdout, name
        left = subprocess.run(
            ["/bin/bash", "-c", f"gpuqueue {shlex.join([name, *words])} | head -c 0; echo ${{PIPESTATUS[0]}}"],
            env=site.environ,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert left.stderr in {"", "nothing ran in this time\n"}, name
        # 141 is SIGPIPE. A command with little output may end before the reader does, and `wait` prints nothing.
        assert int(left.stdout) in {141, printed.returncode}, name
