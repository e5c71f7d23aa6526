"""The ``doctor`` command: prints the findings as text or as JSON."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import click

from gpuqueue.cli.options.json_option import json_option, print_json
from gpuqueue.cli.options.own_queue import refuse_beside_service
from gpuqueue.cli.output.render import terminal_width
from gpuqueue.doctor.examination import EXIT_CODES, examine, repair
from gpuqueue.errors import BadRequest
from gpuqueue.model.finding import Finding, Grade
from gpuqueue.settings.settings import Settings
from gpuqueue.text.sanitize import plain, short, wrapped
from gpuqueue.version import VERSION

#: Grade -> mark, mark for a terminal without Unicode, colour.
MARKS: Mapping[Grade, tuple[str, str, str | None]] = {
    Grade.OK: ("✓", "+", "green"),
    Grade.NOTE: ("–", "-", None),  # noqa: RUF001 - an en dash is meant
    Grade.UNKNOWN: ("?", "?", "yellow"),
    Grade.WARNING: ("!", "!", "yellow"),
    Grade.PROBLEM: ("✗", "x", "red"),
}
ARROW, ASCII_ARROW = "→", "->"
#: Width of the label of a finding, in columns.
LABEL = 18
#: Indent of a finding's text, and the least width that the text is wrapped to, in columns.
BESIDE, LEAST = LABEL + 6, 20


@click.command()
@click.option("--deep", is_flag=True, help="Include slow checks: import torch, check the whole history database.")
@click.option("--fix", is_flag=True, help="Make safe repairs before the checks, and report each.")
@click.option("-v", "--verbose", is_flag=True, help="Print the findings of all checks, with all values.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing about checks that passed.")
@json_option
def doctor(*, deep: bool, fix: bool, verbose: bool, quiet: bool, as_json: bool) -> None:
    """Find problems on this site, and suggest fixes.

    Prints what is wrong, and one line about the checks that passed. Exit code: 0 if all is well, 6 for warnings or
    checks that could not run, 1 for problems.

    \b
    Examples:
      gpuqueue doctor
      gpuqueue doctor --verbose
      gpuqueue doctor -q || mail -s "gpuqueue" root
      gpuqueue doctor --deep
      gpuqueue doctor --fix
    """  # noqa: D301 - \b is click's mark for lines to keep
    if verbose and quiet:
        raise BadRequest("--verbose and --quiet exclude each other: leave out one of the two")
    settings, faults = Settings.salvage()
    if not faults:  # else it is about these, which doctor reports
        refuse_beside_service(settings, "doctor")
    screen = _Screen()
    repairs = list(repair(os.environ)) if fix else None
    if not as_json:
        screen.report_repairs(repairs)
    found: list[Finding] = []
    for section, findings in examine(os.environ, deep=deep):
        found += findings
        if not as_json:
            screen.report_section(section, [each for each in findings if verbose or not each.grade.is_well])
    worst = max((each.grade for each in found), key=list(Grade).index, default=Grade.OK)
    if as_json:
        reported = [each for each in found if not (quiet and each.grade.is_well)]
        print_json({"version": VERSION, "worst": worst, "repairs": repairs, "findings": reported})
    elif not quiet:
        screen.report_summary(_summary(found, verbose=verbose))
    sys.exit(EXIT_CODES[worst])


def _summary(found: Sequence[Finding], *, verbose: bool) -> str:
    """Return one line: how many findings are bad, and how many checks passed. A check may have several findings."""
    grades: dict[tuple[str, str], set[Grade]] = {}
    for each in found:
        grades.setdefault((each.section, each.check), set()).add(each.grade)
    passed = sum(all(grade.is_well for grade in seen) for seen in grades.values())
    counts = Counter(each.grade for each in found)
    bad = [
        f"{counts[grade]} {word}{'s' if counts[grade] > 1 and plural else ''}"
        for grade, word, plural in (
            (Grade.PROBLEM, "problem", True),
            (Grade.WARNING, "warning", True),
            (Grade.UNKNOWN, "unknown", False),
        )
        if counts[grade]
    ]
    words = f"{passed} check{'' if passed == 1 else 's'} passed"
    line = f"{', '.join(bad)}; {words}" if bad else words
    return line if verbose else f"{line}: gpuqueue doctor --verbose shows them"


class _Screen:
    """Writes to standard output, with ASCII marks if its encoding has no others."""

    def __init__(self) -> None:
        self._width = terminal_width()
        self._encoding = sys.stdout.encoding or "ascii"
        self._ascii = not self._can("".join(mark for mark, _, _ in MARKS.values()) + ARROW)

    def _can(self, text: str) -> bool:
        try:
            text.encode(self._encoding)
        except (UnicodeEncodeError, LookupError):
            return False
        return True

    def show(self, text: str) -> None:
        """Print *text*; a character that the encoding lacks becomes a question mark."""
        click.echo(text.encode(self._encoding, "replace").decode(self._encoding))

    def report_repairs(self, repairs: Sequence[str] | None) -> None:
        """Print the repairs that were made; None prints nothing."""
        for each in repairs or ():
            self.show(f"repair: {plain(each)}")
        if repairs is not None:
            self.show("\n" if repairs else "repair: nothing needed a repair\n")

    def report_summary(self, line: str) -> None:
        """Print the last line, wrapped to the terminal."""
        for part in self._broken(line, 0):
            self.show(part)

    def report_section(self, section: str, found: Sequence[Finding]) -> None:
        """Print the findings of one section, or nothing if there are none."""
        if not found:
            return
        self.show(click.style(section, bold=True))
        for each in found:
            for line in self._lines(each):
                self.show(line)

    def _lines(self, finding: Finding) -> Iterator[str]:
        mark, ascii_mark, colour = MARKS[finding.grade]
        shown = click.style(ascii_mark if self._ascii else mark, fg=colour)
        label = short(finding.about or finding.check, LABEL)
        first, *more = self._broken(plain(finding.seen), BESIDE)
        yield f"  {shown} {label:<{LABEL}}  {first}"
        yield from (f"{'':<{BESIDE}}{each}" for each in more)
        if finding.remedy and finding.grade is not Grade.OK:
            arrow = ASCII_ARROW if self._ascii else ARROW
            first, *more = self._broken(plain(finding.remedy), BESIDE + len(arrow) + 1)
            yield f"{'':<{BESIDE}}{arrow} {first}"
            yield from (f"{'':<{BESIDE + len(arrow) + 1}}{each}" for each in more)

    def _broken(self, words: str, beside: int) -> list[str]:
        """Return *words* wrapped for a terminal with an indent of *beside* columns; one line for a pipe."""
        return [words] if self._width is None else wrapped(words, max(LEAST, self._width - beside))
