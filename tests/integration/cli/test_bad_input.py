from __future__ import annotations

import json
import os
from contextlib import closing
from pathlib import Path

import click
import odd
import pytest
from factories import make_spec, must_claim
from hypothesis import given
from hypothesis import strategies as st
from spoken import documented, harmless, speak

from gpuqueue.cli.main import COMMANDS, commands
from gpuqueue.errors import StoreUnreachable
from gpuqueue.queue import job_fields as stored
from gpuqueue.queue.jobqueue import JobQueue

#: Arguments for any position. The kernel passes no NUL, and Python turns undecodable bytes into surrogates.
words = st.one_of(
    odd.texts.filter(lambda text: "\0" not in text and "\ud800" not in text),
    st.sampled_from(["1", "2", "3", "99", "-1", "--", "-", "--json", "--csv", "-h", "5s", "1G", "GPU-0", "nodeA:0"]),
)
#: Command -> its options that do not run for long.
OPTIONS: dict[str, tuple[str, ...]] = {
    "submit": (
        *("-m", "-g", "-t", "-n", "-e", "-C", "-p", "--pool", "--no-requeue", "--no-cap", "--pty", "--python"),
        *("--device", "--device-type", "--exclusive", "--spread", "--pack", "--no-git", "--separate-stderr", "--warm"),
        *("--array", "--sweep", "--at-once", "--on-end", "--on-fail", "--tag"),
    ),
    "queue": ("-u", "-l", "--json"),
    "show": ("--json", "--plot"),
    "why": ("--json",),
    "logs": ("-n", "--since", "--stderr"),
    "fetch": ("--run", "--to", "--replace", "--list", "--json"),
    "wait": ("--timeout", "--any", "--all", "--json"),
    "cancel": ("-u", "-n", "-s", "--tag", "--all", "-y"),
    "hold": ("-u", "-n", "--all", "-y"),
    "release": ("-u", "-n", "--all", "-y"),
    "edit": ("-m", "-g", "--device", "-t", "-n", "-p", "--pool", "--after", "--begin", "--retries", "--retry-on"),
    "extend": (),
    "forward": ("--address",),
    "tag": ("-r",),
    "note": (),
    "move": ("--front", "--undo"),
    "retry": ("-m", "-t", "-p", "-u", "-n", "-s", "--tag", "--since", "--all", "-y"),
    "history": (
        *("-u", "-n", "-s", "--since", "--until", "-d", "-l", "--before", "--json", "--csv", "--sort", "--columns"),
        *("--ending", "--exit-code", "--model", "--host", "--min-peak", "--min-duration", "--max-duration", "-c"),
        *("--after", "-r", "--array", "--tag"),
    ),
    "stats": ("--by", "--since", "--until", "-u", "--json", "--csv", "--learning", "--order", "--jobs"),
    "top": ("-u", "--interval", "--once", "--json"),
    "gpus": ("--json",),
    "limits": ("--json",),
    "notify": ("--json",),
    "snapshots": ("--json", "delete"),
    "drain": ("--all", "--reason", "--at"),
    "lost": ("--yes",),
    "resume": ("--all",),
}
#: Commands that process each word: each bad word gives a line, and the others are processed.
EACH_WORD = {"logs", "cancel", "hold", "release", "retry", "move", "tag", "note"}
#: Commands that wait, run something, or start and stop the machine, and are tested elsewhere.
ELSEWHERE = {
    *("run", "shell", "notebook", "attach", "estimate", "probe", "simulate", "up", "down", "status", "db", "doctor"),
    *("completion", "serve", "login", "logout", "whoami", "token", "audit", "web", "mcp"),
    *("install", "join", "uninstall", "burst", "cron", "exec", "reserve"),
}


@pytest.fixture
def here(here: JobQueue) -> JobQueue:
    """Return a queue with a running, a waiting and a cancelled job, which the command line uses."""
    here.requests.submit(make_spec(name="\x1b]0;owned\x07\n\u202e"))
    must_claim(here)
    here.requests.submit(make_spec())
    here.jobs.cancel(here.requests.submit(make_spec()).id)
    return here


def test_every_command_is_tried_here_or_elsewhere() -> None:
    """Each command is listed with the options to test, or as tested elsewhere."""
    assert set(OPTIONS) <= set(COMMANDS) <= set(OPTIONS) | ELSEWHERE


@pytest.mark.parametrize("command", OPTIONS)
@odd.few_examples
@given(given_words=st.lists(st.one_of(words, st.integers(0, 50)), max_size=6))
def test_no_words_bring_more_than_a_line_and_a_code(here: JobQueue, command: str, given_words: list[str | int]) -> None:
    """Options with invalid values in any order give at most one error line and a documented exit code."""
    options = OPTIONS[command]
    typed = [options[each % len(options)] if isinstance(each, int) and options else str(each) for each in given_words]
    patience = ["--timeout", "0.001s"] if command == "wait" else []

    printed = speak([command, *typed, *patience])

    assert printed.code in documented(), printed
    assert "Traceback" not in printed.stderr
    assert harmless(printed.stderr)
    assert harmless(printed.stdout.decode()) or command == "logs"
    if printed.code == 2:
        lines = printed.stderr.count("\n")
        assert lines == 1 or (command in EACH_WORD and 1 <= lines <= len(typed)), printed.stderr
        assert printed.stderr.startswith("gpuqueue: ")
        assert b"" == printed.stdout or command in EACH_WORD
    elif printed.code and not (
        command == "wait" and printed.code in {1, 130}
    ):  # the exit code of wait is that of the job
        assert printed.stderr.startswith("gpuqueue: ")
    assert here.jobs.counts()[0] >= 0


@pytest.mark.parametrize(
    ("typed", "code", "line"),
    [
        (["submit", "--mem", "1G", "--name", "\x1b]0;x\x07", "--", ""], 2, "the name must be one line of text"),
        (["submit", "a\x1b[2J\n.py", "--mem", "1G"], 2, "no such file: a\ufffd[2J"),
        (["submit", "--mem", "1G", "--cwd", "x" * 5000, "--", "true"], 2, "no such directory"),
        (["submit", "x" * 5000 + ".py", "--mem", "1G"], 2, "no such file"),
        (["submit", "--mem", "1G", "--", "true", "x" * 200_000], 2, "argument 1 takes 200000 bytes"),
        (["submit", "--mem", "1G", "--", "true", *["x" * 1000] * 1100], 2, "put large inputs into a file"),
        (["submit", "--mem", "1G", "-e", "=x", "--", "true"], 2, "write it like --env KEY=VALUE"),
        (["submit", "--mem", "1G", "-n", "x" * 1_000_000, "--", "true"], 2, "1 to 128 characters"),
        (["submit", "--mem", "9" * 1_000_000, "--", "true"], 2, "is not a size"),
        (["--\x1b[31m"], 2, "No such option"),
        (["show", "1\n2"], 2, "is no job: write 17"),
        (["history", "--user", "\udcff"], 2, "user cannot be"),
        (["history", "--since", "\x1b"], 2, "is no time"),
        (["history", "--command", "x" * 1001], 2, "text must have at most 1000 characters"),
        (["cancel", "9007199254740992"], 3, "there is no job"),
        (["submit", "--mem", "1G", "--on-end", "a\x1b]0;x\x07", "--", "true"], 2, "cannot be a target"),
        (["submit", "--mem", "1G", "--on-end", "x" * 5000, "--", "true"], 2, "cannot be a target"),
        (["notify", "--test", "command:true"], 2, "gpuqueue submit --after ID:any"),
        (["submit", "--mem", "1G", "--on-end", "command:./x.sh", "--", "true"], 2, "gpuqueue submit --after ID:any"),
        (["notify", "--test", "team", "--json"], 2, "exclude each other"),
        (
            ["notify", "--test", "team"],
            2,
            "(setting notify): there are none; name one there, or give a mail address or a URL",
        ),
        (["notify", "--test", "bogus://x"], 2, "nothing can be sent to bogus://…: Apprise knows no such scheme"),
        (
            ["notify", "--test", "json://127.0.0.1:1/t"],
            1,
            ". Does this machine reach it, and is the URL right?",
        ),
        (["notify", "--test", "a@b.org"], 2, "the site has no target 'mail'"),
        (["wait", "--timeout", "1x", "1"], 2, "is not a duration"),
        (["nonsense\x07"], 2, "No such command 'nonsense\ufffd'"),
    ],
)
@pytest.mark.usefixtures("here")
def test_a_mistake_is_one_line_that_a_terminal_survives(typed: list[str], code: int, line: str) -> None:
    """Messages quote the input with control characters replaced, and shorten long input."""
    printed = speak(typed)

    assert (code, b"", 1) == (printed.code, printed.stdout, printed.stderr.count("\n"))
    assert line in printed.stderr.replace("\\x07", "\ufffd")
    assert harmless(printed.stderr)
    assert len(printed.stderr) < 2100


def _of_choice() -> list[tuple[str, str]]:
    """Return the options of each command that take a choice or a number."""
    kinds = (click.Choice, click.types.IntParamType, click.types.FloatParamType)
    return [
        (name, option.opts[-1])
        for name in COMMANDS
        for option in (commands.get_command(click.Context(commands), name) or commands).params
        if isinstance(option, click.Option) and isinstance(option.type, kinds)
    ]


@pytest.mark.parametrize(("command", "option"), _of_choice())
@pytest.mark.usefixtures("here")
def test_an_invalid_value_has_one_message_everywhere(command: str, option: str) -> None:
    """Invalid option values give the same message everywhere, not click's text.

    For ``history --limit abc`` that text was ``Invalid value for '--limit': … is not a valid integer range``.
    """
    printed = speak([command, option, "a is not b"])

    assert (2, b"") == (printed.code, printed.stdout)
    assert printed.stderr.startswith(f"gpuqueue: {option}: 'a is not b' is not valid: "), printed.stderr
    assert " use " in printed.stderr or " give a " in printed.stderr


def test_a_terminal_that_knows_few_characters_is_no_mistake(here: JobQueue) -> None:
    """Characters that the output encoding lacks are replaced, as on a Latin-1 terminal or an ASCII pipe."""
    here.requests.submit(make_spec(name="моя работа"))

    assert b"??? ??????" in speak(["queue"], "latin-1").stdout
    assert "no such file: ????.py" in speak(["submit", "файл.py", "--mem", "1G"], "latin-1").stderr
    assert 0 == speak(["queue"], "ascii").code


@pytest.mark.usefixtures("here")
def test_a_fault_of_the_environment_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged variable of gpuqueue is ignored.

    Too many variables, or one that is too long for the kernel, are reported.
    """
    monkeypatch.setenv("GPUQUEUE_CHANGED", '[{"}')
    assert 0 == speak(["submit", "--mem", "1G", "--", "true"]).code
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "environ", {**os.environ, **{f"V{n:05}": "x" for n in range(100_000)}})
        printed = speak(["submit", "--mem", "1G", "--", "true"])
    assert (2, 1) == (printed.code, printed.stderr.count("\n"))
    assert "submit from a smaller environment (env -i)" in printed.stderr
    monkeypatch.setenv("HUGE", "x" * 131_071)
    printed = speak(["submit", "--mem", "1G", "--", "true"])
    assert (2, "the variable 'HUGE' takes 131076 bytes" in printed.stderr) == (printed.code, True)


@pytest.mark.parametrize("content", [b"\xff", b"lease = ", b"#" * 2_000_000])
def test_a_broken_settings_file_is_one_line_of_every_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes
) -> None:
    """A broken settings file gives one line in every command. ``up`` and ``down`` then have done nothing."""
    (tmp_path / "config.toml").write_bytes(content)
    monkeypatch.setenv("GPUQUEUE_CONFIG", str(tmp_path / "config.toml"))

    for command in ("queue", "gpus", "up", "down", "status", "history"):
        printed = speak([command])
        assert (2, b"", 1) == (printed.code, printed.stdout, printed.stderr.count("\n"))
        assert "settings file" in printed.stderr


def test_a_store_of_another_account_is_reported(tmp_path: Path) -> None:
    """The message for a store of another account does not suggest to start one, which would not help."""
    if os.getuid() == 0:
        pid = os.fork()
        if pid == 0:
            os._exit(_refused_as_nobody(tmp_path))
        assert 0 == os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return
    (tmp_path / "closed").mkdir(mode=0)
    queue = closing(JobQueue(f"unix://{tmp_path / 'closed' / 'store.sock'}"))
    with queue as other, pytest.raises(StoreUnreachable, match="you may not use the store"):
        other.epoch()


def _refused_as_nobody(tmp_path: Path) -> int:
    """Query the store as an account without rights. Return 0 if the error says so."""
    queue = JobQueue(f"unix://{tmp_path / 'store.sock'}")
    os.setuid(65534)
    try:
        queue.epoch()
    except StoreUnreachable as error:
        return 0 if "you may not use the store" in str(error) else 1
    except BaseException:  # noqa: BLE001 - a child of a test must end here, whatever happens
        return 2
    return 3


def test_one_damaged_job_hides_no_other_on_the_command_line(here: JobQueue, store_url: str) -> None:
    """``queue`` shows a damaged job as unreadable beside the others. ``show`` says in one line why."""
    from gpuqueue.queue import keys  # noqa: PLC0415 - next to its one use
    from gpuqueue.queue.connect import connect  # noqa: PLC0415 - as above

    client = connect(store_url)
    client.hset(keys.job(2), stored.STATE, "\x1b]0;x\x07")
    client.delete(keys.spec(1))
    client.close()

    printed = speak(["queue", "--json"])
    shown = json.loads(printed.stdout)
    assert [(1, "(unreadable)")] == [(job["id"], job["spec"]["name"]) for job in shown["jobs"]]
    printed = speak(["show", "2"])
    assert (1, 1) == (printed.code, printed.stderr.count("\n"))
    assert "the store's entry of job 2 cannot be read" in printed.stderr
    assert harmless(printed.stderr)
    assert here.jobs.counts()
