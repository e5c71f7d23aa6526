"""Compares the documentation with the code, in both directions, for everything that a program can list."""

from __future__ import annotations

import inspect
import json
import re
import shlex
import shutil
import socket
import subprocess
import sys
from dataclasses import is_dataclass
from functools import reduce
from importlib.resources import files
from itertools import chain
from operator import getitem
from pathlib import Path
from typing import Any, get_args

import click
import pytest
from click.testing import CliRunner
from factories import make_spec
from from_code import OTHER_CODES, PROGRAMS, leaves

from gpuqueue import Client
from gpuqueue.cli.commands.doctor import MARKS
from gpuqueue.cli.commands.history import CSV_COLUMNS
from gpuqueue.cli.main import commands
from gpuqueue.cli.top.lines import Snapshot
from gpuqueue.client.access import Access
from gpuqueue.client.devices import Devices
from gpuqueue.client.estimate import Estimator
from gpuqueue.client.files import Files
from gpuqueue.client.history import History
from gpuqueue.client.jobs import Jobs
from gpuqueue.client.logs import Logs
from gpuqueue.client.repeating import Cron
from gpuqueue.client.stored_snapshots import Snapshots
from gpuqueue.client.why import Why
from gpuqueue.codec.wire import derived, hints
from gpuqueue.doctor.examination import EXIT_CODES, ORDER
from gpuqueue.doctor.examination import ROOMS as OUR_ROOMS
from gpuqueue.embedded.machine import MachineStatus
from gpuqueue.errors import GpuQueueError
from gpuqueue.estimate.dry_run import Estimate
from gpuqueue.history.revision import REVISION
from gpuqueue.history.tables import metadata
from gpuqueue.learning.probed import Probed
from gpuqueue.model.finding import Finding, name_of
from gpuqueue.model.job import TRANSITIONS, JobState, WaitReason
from gpuqueue.model.learning_report import LearningReport
from gpuqueue.model.progress import Progress
from gpuqueue.model.run import EndingKind, Record
from gpuqueue.model.run_files import Fetched
from gpuqueue.model.statistics import Statistics
from gpuqueue.queue.lease import DeviceStatus
from gpuqueue.queue.scripts import ACTS, PRELUDE, SHARED, source
from gpuqueue.settings.parsers import READERS
from gpuqueue.settings.settings import Settings
from gpuqueue.settings.sources import PREFIX, key_of
from gpuqueue.simulator.shapes import EXAMPLE
from gpuqueue.simulator.trace import COLUMNS as TRACE_COLUMNS
from gpuqueue.system.environment import LEFT_OUT, OURS, OURS_THAT_TRAVEL
from workers.devices.backend import DeviceTrouble
from workers.doctor.examination import ROOMS as THEIR_ROOMS
from workers.run.environment import environment

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
#: Pages outside the documentation that link into it.
BESIDE = [ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "examples" / "README.md"]
#: Pages that users read from top to bottom, and the most words of each.
READ_THROUGH = [DOCS / "tutorial.md", *sorted(DOCS.glob("howto/*.md")), *sorted(DOCS.glob("explanation/*.md"))]
MAX_WORDS = 900
#: Option -> whether it takes a value.
Options = dict[str, bool]


def sections(page: Path) -> dict[str, str]:
    """Return the text below each heading of the second level, by the heading without its marks."""
    parts = re.split(r"^## (.+)$", page.read_text(), flags=re.MULTILINE)
    return {head.replace("`", ""): text for head, text in zip(parts[1::2], parts[2::2], strict=True)}


def rows(text: str) -> list[list[str]]:
    """Return the cells of each row of the tables in *text*, without headers and rules."""
    found: list[list[str]] = []
    in_body = False
    for line in text.splitlines():
        if not line.startswith("|"):
            in_body = False
        elif set(line) <= set("|- "):
            in_body = True
        elif in_body:
            cells = re.split(r"(?<!`)\|(?! head`)", line.strip().strip("|"))
            found.append([cell.strip() for cell in cells])
    return found


def first_words(text: str) -> list[str]:
    """Return the text in code marks in the first cell of each row."""
    return [row[0].strip("`") for row in rows(text) if row[0].startswith("`")]


def options_of(command: click.Command) -> Options:
    """Return the visible options of *command*."""
    return {
        option: not parameter.is_flag
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.hidden
        for option in (*parameter.opts, *parameter.secondary_opts)
    }


def every_command() -> dict[str, Options]:
    """Return each command of both programs with its options."""
    return {
        name: options_of(command)
        for program, group in PROGRAMS.items()
        for name, command in leaves(program, group)
        if not (isinstance(command, click.Group) and not options_of(command))  # needs no section
    }


def test_every_command_and_option_is_described_and_none_that_is_gone() -> None:
    """The pages of the commands have a section for each command that names each option, and no others."""
    described = {
        head: {
            option
            for row in rows(text)
            for option in re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", row[0].replace("`", " "))
        }
        for page in (REFERENCE / "commands.md", DOCS / "internals" / "worker-commands.md")
        for head, text in sections(page).items()
        if head.split()[0] in PROGRAMS
    }

    assert {name: set(options) for name, options in every_command().items()} == described


GENERATE = Path("reference") / "generate.py"


def generate(docs: Path, *words: str) -> tuple[int, str]:
    """Run the generator of the reference pages in *docs*; return its exit code and output."""
    done = subprocess.run(
        [sys.executable, str(docs / GENERATE), *words], capture_output=True, text=True, check=False, timeout=100
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.full
def test_the_reference_is_what_the_code_says() -> None:
    """docs/reference/generate.py has nothing to change.

    It checks options, values, defaults, examples and settings.
    """
    assert (0, "") == generate(DOCS, "--check")


@pytest.mark.full
def test_what_the_reference_lacks_is_written(tmp_path: Path) -> None:
    """The generator adds a missing section, row and setting, corrects a wrong default, and keeps the text."""
    for folder in ("reference", "internals"):
        shutil.copytree(DOCS / folder, tmp_path / folder)
    commands_page, settings_page = (tmp_path / "reference" / name for name in ("commands.md", "settings.md"))
    text = commands_page.read_text()
    begin, end = text.index("## `gpuqueue wait`"), text.index("## `gpuqueue cancel`")
    text = text[:begin] + text[end:]
    text = text.replace("Default 1000.", "Default 7.").replace("| `--foreground`", "| `--background`")
    commands_page.write_text(text)
    settings_page.write_text(re.sub(r"^.*_HOST_LOST_AFTER`.*\n", "", settings_page.read_text(), flags=re.MULTILINE))

    code, printed = generate(tmp_path, "--check")
    assert code == 1
    assert "run .venv/bin/python docs/reference/generate.py" in printed
    assert text == commands_page.read_text()

    assert generate(tmp_path)[0] == 0
    written = sections(commands_page)
    assert {"--timeout", "--json"} <= set(re.findall(r"--\w+", written["gpuqueue wait"]))
    assert "gpuqueue wait 12 13\n" in written["gpuqueue wait"]
    assert "oldest first. Default `1000`." in written["gpuqueue queue"]
    up = ["--devices SPEC", "--foreground", "--hold-jobs", "--until TIME", "--web", "--web-port PORT"]
    assert up == first_words(written["gpuqueue up"])
    assert sections(REFERENCE / "commands.md")["gpuqueue cancel"] == written["gpuqueue cancel"]
    lease = next(row for row in rows(settings_page.read_text()) if row[1] == "`host_lost_after`")
    assert ["`GPUQUEUE_HOST_LOST_AFTER`", "`host_lost_after`", "`5m`", "duration"] == lease[:4]
    assert lease[4].startswith("How long the jobs of a host")


def test_every_exit_code_is_described() -> None:
    """The table has the exit codes of the error tree, of a success, and of interrupted commands."""

    def codes(error: type[GpuQueueError]) -> set[int]:
        return {error.exit_code}.union(*(codes(below) for below in error.__subclasses__()))

    assert issubclass(DeviceTrouble, GpuQueueError)  # the tree is complete only with the workers' part imported
    table = sections(REFERENCE / "commands.md")["Exit codes"]

    of_doctor = set(EXIT_CODES.values())
    assert set(OTHER_CODES) | of_doctor | codes(GpuQueueError) == {int(code) for code in first_words(table)}


def test_every_setting_is_described_with_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment names, file keys and defaults in docs/reference/settings.md are those of the code."""
    monkeypatch.setenv("HOME", "/home/ada")  # short, because a long path moves the socket
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    settings = Settings.load({"GPUQUEUE_CONFIG": "/dev/null"})
    expected = {}
    for name in READERS:
        key = key_of(name)
        expected[PREFIX + key.upper()] = (key, getattr(settings, name))

    described = {}
    for variable, key, default, *_ in rows((REFERENCE / "settings.md").read_text()):
        name = next((each for each in READERS if key_of(each) == key.strip("`")), "")
        text = default.strip("`").replace("STATE_DIR", str(settings.state_dir)).replace("~", "/home/ada")
        own_name = socket.gethostname()
        special: dict[str, Any] = {"none": None, "empty": "", "this machine's host name": own_name}
        special |= {"no targets": {}, "no environments": {}, "no engines": {}}
        value = special[text] if text in special else READERS[name](text)
        described[variable.strip("`")] = (key.strip("`"), value)

    assert expected == described


#: Section of docs/reference/json.md -> the type that it describes.
TYPES: dict[str, Any] = {
    "A job": Record,
    "A wait": Why,
    "A device": DeviceStatus,
    "A progress": Progress,
    "A snapshot of top": Snapshot,
    "A fetch": Fetched,
    "Statistics": Statistics,
    "A replay of learned memory": LearningReport,
    "A status": MachineStatus,
    "An estimate": Estimate,
}


def fields_of(kind: Any) -> dict[str, Any]:
    """Return the types of the JSON fields of *kind*, or of the classes in it: of ``tuple[Run, ...]`` those of a run."""
    if is_dataclass(kind):
        return {**hints(kind), **derived(kind)}  # type: ignore[arg-type] # a class, and no value of it
    return {name: hint for each in get_args(kind) for name, hint in fields_of(each).items()}


@pytest.mark.parametrize("head", TYPES)
def test_every_field_that_is_described_is_one_of_its_type(head: str) -> None:
    """docs/reference/json.md names no field of a value of the API, such as ``job.spec.argv``, that does not exist."""
    paths = first_words(sections(REFERENCE / "json.md")[head])
    assert paths
    for path in paths:
        kind = TYPES[head]
        for name in path.split("."):
            assert name in fields_of(kind), path
            kind = fields_of(kind)[name]


def test_every_field_that_only_a_command_has_is_described() -> None:
    """docs/reference/json.md names each field that ``simulate``, ``probe`` and ``doctor`` make, and each CSV column."""
    described = {head: first_words(text) for head, text in sections(REFERENCE / "json.md").items()}
    words = ["simulate", "-", "--devices", "24G", "--json"]
    simulated = json.loads(CliRunner().invoke(commands, words, input=EXAMPLE).stdout)
    examined = ["version", "worst", "repairs", "findings"]

    assert list(CSV_COLUMNS) == described["CSV"]
    assert [*examined, *(f"findings.{name}" for name in fields_of(Finding))] == described["An examination"]
    assert [*fields_of(Probed), "progress", "record"] == described["A probe"]
    in_outcomes = [each for each in described["A simulation"] if "." in each]
    assert list(simulated) == [each for each in described["A simulation"] if each not in in_outcomes]
    for path in in_outcomes:
        assert reduce(getitem, path.split(".")[1:], simulated["outcomes"][0]) is not None, path


def test_every_column_of_a_trace_is_described() -> None:
    """docs/reference/commands.md names each column of a trace."""
    table = sections(REFERENCE / "commands.md")["gpuqueue simulate"].split("column of a trace")[1]
    described = re.findall(r"`(\w+)`", " ".join(row.split("|")[1] for row in table.splitlines() if row.startswith("|")))

    assert {*TRACE_COLUMNS, "mem", "duration", "time_limit"} == set(described)


def test_every_check_and_grade_of_doctor_is_described() -> None:
    """docs/reference/doctor.md names each group's checks, and the exit codes of the grades.

    The checks are those of both packages.
    """
    page = REFERENCE / "doctor.md"
    checks = {room: [name_of(check) for check in found] for room, found in {**OUR_ROOMS, **THEIR_ROOMS}.items()}
    table = rows(page.read_text())
    codes = {
        word: int(row[1].strip("`"))
        for row in table
        for word in re.findall(r"`(\w+)`", row[0])
        if len(row) == 2 and row[1].strip("`").isdigit()
    }

    assert set(ORDER) == set(checks)
    assert checks == {head: first_words(text) for head, text in sections(page).items() if head in checks}
    assert {str(grade): code for grade, code in EXIT_CODES.items()} == codes
    assert {str(grade): f"`{marks[0]}`" for grade, marks in MARKS.items()} == {
        row[0].strip("`"): row[1] for row in table if len(row) == 3
    }


def test_every_table_and_column_is_described() -> None:
    """docs/reference/database.md names the columns of each table in their order, and no others."""
    expected = {name: [column.name for column in table.columns] for name, table in metadata.tables.items()}

    described = {head: first_words(text) for head, text in sections(REFERENCE / "database.md").items()}

    assert expected == {head: columns for head, columns in described.items() if columns}


def test_the_tutorial_shows_the_tables_of_today() -> None:
    """The tutorial shows the present schema revision.

    New users compare its first screen with their own.
    """
    assert [REVISION] == re.findall(r"tables at revision (\d+)", (DOCS / "tutorial.md").read_text())


def test_what_travels_and_what_the_job_finds_is_described() -> None:
    """The lists in docs/reference/submit.md are those of the code."""
    page = sections(REFERENCE / "submit.md")
    found = environment(1, "1.a", make_spec(env={}), (), Path("/r"))
    travel = next(line for line in page["Environment"].splitlines() if line.startswith("Of our own variables"))

    assert {*LEFT_OUT, f"{OURS}*"} == set(first_words(page["Environment"]))
    assert OURS_THAT_TRAVEL == set(re.findall(r"`(\w+)`", travel))
    assert set(found) == set(first_words(page["What the job finds"]))


def test_every_arrow_is_described_with_its_scripts() -> None:
    """docs/explanation/lifecycle.md has each transition, with the scripts whose headers declare it."""
    drawn: dict[tuple[str, str], set[str]] = {}
    for act in (*ACTS, "array"):  # the shared part "array" moves arrays, for every act on a member
        for start, end in re.findall(r"^-- arrow: (\w+) -> (\w+)$", source(act), flags=re.MULTILINE):
            drawn.setdefault((start, end), set()).add(act)
    assert {(str(start or "none"), str(end)) for start, ends in TRANSITIONS.items() for end in ends} == set(drawn)

    described = {}
    for arrow, scripts, sentence in rows(sections(DOCS / "internals" / "lifecycle-scripts.md")["Arrows"]):
        start, end = re.findall(r"`(\w+)`", arrow)
        described[start, end] = set(re.findall(r"`(\w+)`", scripts))
        assert sentence.endswith("."), arrow

    assert drawn == described


@pytest.mark.parametrize(
    ("head", "words"),
    [("States", JobState), ("Endings", EndingKind), ("Why a job waits", WaitReason)],
)
def test_every_state_ending_and_reason_is_described(head: str, words: type[JobState | EndingKind | WaitReason]) -> None:
    """docs/explanation/lifecycle.md explains every state, ending and reason that an output may show."""
    assert {word.value for word in words} == set(first_words(sections(DOCS / "explanation" / "lifecycle.md")[head]))


def test_every_script_is_where_the_docs_say() -> None:
    """gpuqueue/queue/lua, which the pages name, has the scripts."""
    assert {*ACTS, *PRELUDE, *chain.from_iterable(SHARED.values())} == {
        entry.name.removesuffix(".lua") for entry in Path(str(files("gpuqueue.queue"))).glob("lua/*/*.lua")
    }


def anchor(heading: str) -> str:
    """Return the anchor that GitHub makes from a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def prose(page: Path) -> str:
    """Return a page without its code blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", [*PAGES, *BESIDE], ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    """The target of each relative link exists, and so does its heading."""
    broken = []
    for groups in re.findall(r"\]\(([^)\s]+)\)|(?:src|srcset)=\"([^\"]+)\"", prose(page)):
        target = "".join(groups)
        if "://" in target or target.startswith("mailto:"):
            continue
        path, _, mark = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        headings = re.findall(r"^#+ (.+)$", prose(there), flags=re.MULTILINE) if there.suffix == ".md" else []
        if not there.exists() or (mark and mark not in map(anchor, headings)):
            broken.append(target)

    assert [] == broken


@pytest.mark.parametrize("page", READ_THROUGH, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_at_most_900_words(page: Path) -> None:
    """A page that users read through has at most 900 words, as `wc -w` counts: a long page hides the common case."""
    assert len(page.read_text().split()) <= MAX_WORDS


def test_the_tutorial_installs_what_the_readme_does() -> None:
    """A newcomer goes from one page to the other, and each command of both works. Only the tutorial needs PyTorch."""
    line = re.compile(r"^ *pip install \. 'gpuqueue-server\[([a-z,]+)\]'", re.MULTILINE)

    first, then = (set(line.findall(page.read_text())[0].split(",")) for page in (ROOT / "README.md", READ_THROUGH[0]))

    assert {"examples"} == then - first
    assert set() == first - then


def shown_commands(page: Path) -> list[str]:
    """Return each line of a code block, fenced or indented, that calls one of gpuqueue's programs."""
    lines = []
    in_fence = False
    for line in page.read_text().replace("\\\n", "").splitlines():  # a line that ends with a backslash goes on
        if line.lstrip().startswith("```"):
            in_fence = not in_fence
        elif in_fence or line.startswith("    "):
            text = line.strip().removeprefix("$ ")
            if text.split(" ", 1)[0] in PROGRAMS and ": " not in text.split(" ", 2)[0]:
                lines.append(text)
    return lines


def fault(line: str) -> str | None:
    """Return what is wrong with a command line, or None."""
    words = []
    for word in shlex.split(line, comments=True):
        if word in {"|", "||", ">", "&&", ";", "--"}:
            break
        words.append(word)
    name, rest = words[0], words[1:]
    known = dict(pair for program, group in PROGRAMS.items() for pair in leaves(program, group))
    while rest and f"{name} {rest[0]}" in known:
        name = f"{name} {rest.pop(0)}"
    if isinstance(known[name], click.Group) and rest and not rest[0].startswith("-"):
        return f"no command {rest[0]}"
    options = {**options_of(known[name]), "-h": False, "--help": False}
    given = [word.split("=")[0] for word in rest if word.startswith("-")]
    return next((f"no option {word}" for word in given if word not in options), None)


#: The heading of each table of the client's methods, and what has these methods.
GROUPS = {
    "`client.jobs`": Jobs,
    "`client.history`": History,
    "`client.devices`": Devices,
    "`client.logs`": Logs,
    "`client.files`": Files,
    "`client.cron`": Cron,
    "`client.snapshots`": Snapshots,
    "`client.access`": Access,
    "And of `client`": Client,
}


def parameters_shown(text: str) -> list[tuple[str, set[str]]]:
    """Return the methods in a table of the client, each with the names of its parameters."""
    cells = re.findall(r"^\| (`.*?`) \|", text, re.MULTILINE)
    calls = [call for cell in cells for call in re.findall(r"`(\w+)\(([^`]*)\)`", cell)]
    words = [(name, re.sub(r"\(\)", "", given).split(",")) for name, given in calls]
    return [(name, {word.split("=")[0].strip().lstrip("*") for word in given} - {""}) for name, given in words]


def test_every_method_of_the_client_is_shown_with_its_parameters() -> None:
    """The table of the client has each method's parameters.

    A call by keyword once failed: the table said `get(job_id)`, and five parameters of submit were missing.
    """
    page = (ROOT / "docs/reference/python.md").read_text()
    starts = [page.index(heading) for heading in GROUPS] + [len(page)]

    count = 0
    for group, start, end in zip(GROUPS.values(), starts, starts[1:], strict=False):
        for name, words in parameters_shown(page[start:end]):
            method = Estimator.__call__ if name == "estimate" else getattr(group, name)
            assert {*inspect.signature(method).parameters} - {"self"} == words, name
            count += 1
    assert count >= 30


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_shown_exists(page: Path) -> None:
    """Each command in a code block exists, with its options."""
    assert {} == {line: what for line in shown_commands(page) if (what := fault(line))}


def test_the_checks_of_command_lines_are_no_formality() -> None:
    """The check finds a wrong command and a wrong option, and finds command lines at all."""
    assert "no command frobnicate" == fault("gpuqueue frobnicate 1")
    assert "no option --memory" == fault("gpuqueue submit train.py --memory=6G -- --lr 1")
    assert fault("gpuqueue submit train.py -m 6G -- --lr 1  # a remark") is None
    assert {"up", "submit", "run", "queue", "logs", "history", "down"} <= {
        line.split()[1] for page in PAGES for line in shown_commands(page)
    }
