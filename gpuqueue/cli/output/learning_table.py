"""The table of a replay of learned memory, as text. Pure."""

from __future__ import annotations

from typing import TypeAlias

from gpuqueue.cli.output.render import Column, hanging, table_of
from gpuqueue.model.learning_report import FirstRequest, LearningReport, MemRule, ReplayFigures
from gpuqueue.model.mem_source import Signature
from gpuqueue.text.units import GIB
from gpuqueue.words import values

#: The words of a line, and its figures.
_Line: TypeAlias = tuple[str, ReplayFigures]

#: Rule -> its words in the table. Another rule has those of its key.
RULES = {
    MemRule.ASKED.value: "what was asked",
    MemRule.LEARNED.value: "learned",
    MemRule.ENOUGH.value: "learned, without retries",
    MemRule.LARGEST.value: "largest so far",
    MemRule.MEAN_2SD.value: "mean + 2 sd",
    MemRule.LAST.value: "last x 1.2",
    MemRule.P90.value: "90th percentile x 1.15",
}
#: What a learned request has room for -> its words in the table.
FIRST_REQUESTS = {FirstRequest.ALL: "the largest peak", FirstRequest.TWO_THIRDS: "two thirds of the peaks"}
#: What the figures mean.
NOTES = (
    "FITTED: the peak was within the first allocation. UNUSED: memory reserved and not used, and in % of the peaks.",
    "Each repeat job was replayed with what was known when it was submitted.",
    "A run that did not fit counts with half of its time; the next one gets twice as much.",
)


def fit_percent(share: float | None) -> str:
    """Return a share in percent with a decimal: 99.6 % must not look like all; ``-`` for None."""
    return "-" if share is None else f"{100 * share:.1f} %"


_COLUMNS: tuple[Column[_Line], ...] = (
    Column(head="JOBS", cell=lambda line, _: str(line[1].jobs), right=True, keep=1),
    Column(head="FITTED", cell=lambda line, _: fit_percent(line[1].fit_rate), right=True),
    Column(head="LOST RUNS", cell=lambda line, _: str(line[1].lost_tries), right=True, keep=2),
    Column(
        head="RESERVED GIB H",
        cell=lambda line, _: values.hours(line[1].reserved_byte_s / GIB),
        right=True,
        keep=0,
    ),
    Column(head="UNUSED GIB H", cell=lambda line, _: values.hours(line[1].unused_byte_s / GIB), right=True, keep=3),
    Column(head="UNUSED", cell=lambda line, _: values.percent(line[1].above_peak), right=True),
)


def learning_table(report: LearningReport, width: int | None) -> str:
    """Return the rules as a table, then the learned numbers by signature, and notes below.

    *width* is that of the terminal in columns; None means a pipe, and nothing is omitted.
    """
    rules = [(RULES.get(group.key, group.key), group.figures) for group in report.rules]
    tables = [_table("RULE", rules, width)]
    if len(report.signatures) > 1:
        signatures = [(Signature(group.key).words, group.figures) for group in report.signatures]
        tables.append(_table("LEARNED FROM RUNS", signatures, width))
    if len(report.first_requests) > 1:
        first = [(FIRST_REQUESTS[FirstRequest(group.key)], group.figures) for group in report.first_requests]
        tables.append(_table("LEARNED WITH ROOM FOR", first, width))
    notes = [row for note in [counted(report), *NOTES] for row in hanging(note, width)]
    return "\n\n".join([*tables, "\n".join(notes)])


def counted(report: LearningReport) -> str:
    """Return which jobs were replayed, in one line."""
    words = [f"{report.repeats} of {report.jobs} jobs were replayed"]
    if report.first:
        words.append(f"{report.first} were the first of their program")
    if report.unclear:
        words.append(f"of {report.unclear} the need is not known (no trusted peak, or they filled their allocation)")
    if report.is_cut:
        words.append("older jobs were not read: choose an earlier --until for them")
    return "; ".join(words) + "."


def _table(head: str, lines: list[_Line], width: int | None) -> str:
    label: Column[_Line] = Column(head=head, cell=lambda line, _: line[0], least=8, narrows=1)
    return table_of([label, *_COLUMNS], lines, width)
