"""Tests of what ``gpuqueue doctor`` prints for given findings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from click.testing import CliRunner, Result

from gpuqueue.cli.commands import doctor as command
from gpuqueue.errors import BadRequest
from gpuqueue.model.finding import Finding, note, ok, problem, warning

WELL = (
    replace(ok("/etc/gpuqueue.toml"), section="settings", check="file"),
    replace(ok("8 (default)", about="slots"), section="settings", check="values"),
    replace(note("a (file)", about="pool"), section="settings", check="values"),
    replace(ok("it answers"), section="store", check="answers"),
)
WRONG = (
    replace(problem("no disk", "buy one"), section="state", check="disk"),
    replace(ok("the other disk", about="/var"), section="state", check="disk"),
    replace(warning("it is late", "wait"), section="history", check="behind"),
)


@pytest.fixture
def findings(monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    """Return the list of the findings that the examination gives; a test fills it."""
    found: list[Finding] = []

    def examine(*_: object, **__: object) -> Iterator[tuple[str, list[Finding]]]:
        for section in dict.fromkeys(each.section for each in found):
            yield section, [each for each in found if each.section == section]

    monkeypatch.setattr(command, "examine", examine)
    return found


def doctor(*words: str) -> Result:
    """Run the command."""
    return CliRunner().invoke(command.doctor, words)


def test_passed_checks_take_one_line(findings: list[Finding]) -> None:
    """Checks that passed are counted, not listed. ``--verbose`` lists their values, and ``-q`` prints nothing."""
    findings += WELL

    assert (0, "3 checks passed: gpuqueue doctor --verbose shows them\n") == (doctor().exit_code, doctor().stdout)
    assert (0, "") == (doctor("-q").exit_code, doctor("-q").stdout)
    whole = doctor("--verbose").stdout
    assert all(each.seen in whole for each in WELL)
    assert "3 checks passed" == whole.splitlines()[-1]


def test_bad_findings_are_listed_with_remedies(findings: list[Finding]) -> None:
    """Each bad finding is printed with its remedy. A check with one bad finding has not passed."""
    findings += (*WELL, *WRONG)

    done, quiet = doctor(), doctor("-q")

    *report, last = done.stdout.splitlines()
    assert "1 problem, 1 warning; 3 checks passed: gpuqueue doctor --verbose shows them" == last
    assert report == quiet.stdout.splitlines()
    assert ["state", "history"] == [line for line in report if not line.startswith(" ")]
    assert all(each in done.stdout for each in ("no disk", "buy one", "it is late", "wait"))
    assert not any(each in done.stdout for each in ("the other disk", "/etc/gpuqueue.toml", "8 (default)"))
    assert (1, 1) == (done.exit_code, quiet.exit_code)


def test_json_has_every_finding(findings: list[Finding]) -> None:
    """``--json`` is complete, with and without ``--verbose``. With ``-q`` it has only the findings that are bad."""
    findings += (*WELL, *WRONG)

    for words in ([], ["--verbose"]):
        printed = json.loads(doctor("--json", *words).stdout)
        assert [each.seen for each in findings] == [each["seen"] for each in printed["findings"]]
        assert ("problem", None) == (printed["worst"], printed["repairs"])
    quiet = json.loads(doctor("--json", "-q").stdout)["findings"]
    assert [each.seen for each in findings if not each.grade.is_well] == [each["seen"] for each in quiet]


def test_a_terminal_that_knows_ascii_only_gets_ascii(findings: list[Finding]) -> None:
    """A mark or a letter that cannot be encoded does not end the report."""
    findings += (*WRONG, replace(problem("café", "tea"), section="state", check="drink"))

    printed = CliRunner(charset="ascii").invoke(command.doctor).stdout

    assert "  x disk                no disk\n" in printed
    assert "-> buy one" in printed
    assert "caf?" in printed


def test_verbose_and_quiet_exclude_each_other(findings: list[Finding]) -> None:
    """Both options together are wrong usage."""
    findings += WELL

    assert isinstance(doctor("-q", "--verbose").exception, BadRequest)
