"""The line that whoever waits for a job reads."""

from __future__ import annotations

import pytest

from gpuqueue.cli.follow.wait_line import WORDS
from gpuqueue.model.job import WaitReason


@pytest.mark.parametrize("reason", WaitReason)
def test_each_reason_to_wait_has_words(reason: WaitReason) -> None:
    """`run --after 12` said no more than `job 13 waits; nobody before it`: six reasons had none."""
    assert WORDS[reason].startswith(("for ", "to "))
