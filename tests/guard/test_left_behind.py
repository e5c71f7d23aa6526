"""Tests that bound what a recorded job leaves in the store.

A store that grows by one key for each job is full after some years.
"""

from __future__ import annotations

import pytest
from guard.one_life import OneLife

#: Prefix of the stored answers to repeated submits, which expire.
ANSWER = "{gq}:idem:"
#: How long an answer may stay, in seconds, and its largest size, in bytes.
ANSWER_S, ANSWER_BYTES = 600, 128
#: What a key may grow by, in bytes: a share is stored as text, and its number of digits varies.
DIGITS_BYTES = 32
JOBS = 50


@pytest.mark.full
def test_fifty_jobs_leave_what_one_leaves(life: OneLife) -> None:
    """After fifty jobs the store has the keys and sizes that it had before, except for expiring answers.

    A size may differ by a few digits.
    """
    before = _kept(life)

    for _ in range(JOBS):
        life.through()

    after = _kept(life)
    assert before.keys() == after.keys()
    assert {} == {key: size for key, size in after.items() if size > before[key] + DIGITS_BYTES}
    answers = [key for key in life.kept() if key.startswith(ANSWER)]
    assert len(answers) >= JOBS
    assert all(0 < life.admin.ttl(key) <= ANSWER_S for key in answers)
    assert max(life.kept()[key] for key in answers) <= ANSWER_BYTES


def _kept(life: OneLife) -> dict[str, int]:
    return {key: each for key, each in life.kept().items() if not key.startswith(ANSWER)}
