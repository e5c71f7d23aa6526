"""`gpuqueue.doctor.machines` runs ``gpuqueue-worker doctor`` and keeps its findings even if that program fails."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from gpuqueue.codec.wire import to_plain
from gpuqueue.doctor import examination
from gpuqueue.model.finding import Finding, Grade, note, ok, problem, unknown
from gpuqueue.system import process as process_module

REPORTED = json.dumps({**to_plain(ok("as it should be")), "section": "host", "check": "driver"})


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of the program that is run. Each test writes the program."""
    path = tmp_path / "gpuqueue-worker"
    monkeypatch.setattr(examination, "installed", lambda _: str(path))
    monkeypatch.setattr(examination, "ASK_S", 2.0)
    return path


def write(path: Path, *lines: str) -> None:
    path.write_text("\n".join(("#!/bin/sh", f"echo '{REPORTED}'", *lines, "")))
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (("exec sleep 100",), "it took longer than 2 s"),
        (("echo the driver took it down >&2", "exit 3"), "it ended with 3: the driver took it down"),
        (("kill -SEGV $$",), "it ended with -11: without a word"),
    ],
)
def test_the_output_before_a_crash_is_kept(program: Path, lines: tuple[str, ...], why: str) -> None:
    """Findings printed before the program hangs or dies are kept, and one finding says why the rest is missing.

    A dying card can hang a driver call for ever, and some drivers kill the process.
    """
    write(program, *lines)

    driver, rest = examination.ask(os.environ, deep=False).of("host")

    assert (Grade.OK, "driver") == (driver.grade, driver.check)
    assert (Grade.UNKNOWN, "machines") == (rest.grade, rest.check)
    assert why in rest.seen


def test_a_program_that_does_not_end_is_not_waited_for(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver call that never returns keeps the program from ending, also after SIGKILL."""
    write(program, "exec sleep 100")
    killed: list[subprocess.Popen[bytes]] = []
    kill = subprocess.Popen.kill
    monkeypatch.setattr(subprocess.Popen, "kill", lambda each: killed.append(each))  # noqa: PLW0108 - a method of a list is bound
    monkeypatch.setattr(process_module, "KILLED_S", 0.1)

    answer = examination.ask(os.environ, deep=False)

    process = killed[0]
    assert process.poll() is None
    kill(process)
    process.wait()
    assert (1, "it took longer than 2 s") == (len(answer.findings), answer.broken)


def test_half_a_line_and_the_words_of_a_library_are_left_out(program: Path) -> None:
    """Only complete findings and repairs are read.

    Incomplete lines and other output, such as a library's, are skipped.
    """
    write(
        program,
        "echo a library prints what it likes",
        "echo '[1]'",
        """echo '{"repair": "done"}'""",
        "printf '{\"room'",
    )

    answer = examination.ask(os.environ, deep=False, fix=True)

    assert (1, ("done",), "") == (len(answer.findings), answer.repairs, answer.broken)


@pytest.mark.parametrize("finding", [ok("a"), note("b", "c"), unknown("d"), problem("e", "f", about="g", fixable=True)])
def test_a_finding_travels_as_a_line(finding: Finding) -> None:
    """A finding survives JSON. The `workers` side sends its findings in this form."""
    assert finding == examination.from_line(json.dumps(to_plain(finding)))


@pytest.mark.parametrize("line", ["", "{", "[]", '{"grade": "ok"}', '{"grade": "bad", "seen": "x"}', "a log line"])
def test_a_line_that_is_no_finding_is_none(line: str) -> None:
    """An invalid line is None. A killed program may leave half a line, and a library may print anything."""
    assert examination.from_line(line) is None
