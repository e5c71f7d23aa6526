"""Tests of the line that a waiting command shows."""

from __future__ import annotations

import pytest

from gpuqueue.cli.follow.wait_line import WORDS
from gpuqueue.model.job import WaitReason


@pytest.mark.parametrize("reason", WaitReason)
def test_each_reason_to_wait_has_words(reason: WaitReason) -> None:
    """Every wait reason has a text.

    Regression: `run --after 12` said only `job 13 waits; nobody before it`, because six reasons had none.
    """
    assert WORDS[reason].startswith(("for ", "to "))
