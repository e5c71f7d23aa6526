"""What a job leaves in the store when the book has it: a store that grows by a key a job is full after some years."""

from __future__ import annotations

import pytest
from guard.one_life import OneLife

#: The answer to a submit that is sent twice, which goes by itself.
ANSWER = "{gq}:idem:"
#: How long it may stay, in seconds, and what it may take.
ANSWER_S, ANSWER_BYTES = 600, 128
#: What a key may grow by: a share is text, and has more digits at one moment than at another.
DIGITS_BYTES = 32
JOBS = 50


@pytest.mark.full
def test_fifty_jobs_leave_what_one_leaves(life: OneLife) -> None:
    """Every key but the answers is there after the first job, with as many bytes as after the fiftieth, but digits."""
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
