"""Tests of the setting that says which priority may preempt which."""

from __future__ import annotations

import pytest

from gpuqueue.errors import BadRequest
from gpuqueue.model.job_spec import Priority
from gpuqueue.model.preemption import parse_preempt, words_of
from gpuqueue.settings.settings import Settings


def test_a_site_sets_which_priorities_may_preempt_which() -> None:
    """The setting lists which priorities may preempt which. By default none may."""
    assert {} == parse_preempt("")
    found = parse_preempt("urgent: normal low; high: low")
    assert {Priority.URGENT: (Priority.LOW, Priority.NORMAL), Priority.HIGH: (Priority.LOW,)} == found
    assert ["2", "0", "3", "01"] == words_of(found)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("urgent", "'urgent' preempts nothing: write urgent: low normal"),
        ("urgent:", "preempts nothing"),
        ("urgent: nobody", "'nobody' is no priority: choose from low, normal, high, urgent"),
        ("top: low", "'top' is no priority"),
        ("low: high", "low cannot preempt high: only lower priorities"),
        ("high: high", "high cannot preempt high"),
        ("high: low; high: normal", "high is named twice"),
    ],
)
def test_an_invalid_value_is_refused_in_one_line(text: str, words: str) -> None:
    """An invalid value is refused in one line, and the error names the setting."""
    with pytest.raises(BadRequest, match=words):
        parse_preempt(text)
    environ = {"GPUQUEUE_CONFIG": "/dev/null", "GPUQUEUE_STATE_DIR": "/s", "GPUQUEUE_PREEMPT": text}
    with pytest.raises(BadRequest, match=rf"setting preempt \(environment GPUQUEUE_PREEMPT\): .*{words}"):
        Settings.load(environ)
