from __future__ import annotations

import pytest

from gpuqueue.errors import BadRequest
from gpuqueue.model.shares import Shares
from gpuqueue.settings.settings import Settings


def test_a_groups_share_is_divided_among_its_members() -> None:
    """A group's share is divided among its members by their own shares.

    Here two members divide a share of 3 into 2 and 1. A member without a share counts as 1.
    """
    shares = Shares.parse("ann=2, eve=0.5, @vision=3", "vision: ann bob; nlp: cat")

    assert {"ann": 2.0, "bob": 1.0, "eve": 0.5, "cat": 1.0} == shares.by_user()


def test_empty_settings_give_equal_shares() -> None:
    """Without a setting all users have the same share."""
    assert {} == Shares.parse("", "").by_user()


@pytest.mark.parametrize(
    ("shares", "groups", "words"),
    [
        ("ann", "", "'ann' is no share: write ann=2"),
        ("ann=0", "", "'0' is no share: a number"),
        ("ann=-1", "", "'-1' is no share: a number"),
        ("ann=1e9", "", "'1e9' is no share: a number"),
        ("a b=1", "", "'a b=1' is no share: write ann=2"),
        ("@vision=2", "", "the group vision has a share and no members"),
        ("", "vision", "'vision' is no group: write"),
        ("", "vision:", "'vision:' is no group: write"),
        ("", "a: ann; b: ann", "ann is in two groups, a and b"),
        ("ann=1, bob=1, ann=2", "", "^ann is named twice: write one share"),
        ("@a=1, @a = 2", "a: ann", "^@a is named twice: write one share"),
        ("", "a: x y; a: z", "the group a is named twice: write all its members in one place"),
        ("", "a: ann ann", "ann is named twice in the group a"),
    ],
)
def test_an_invalid_share_is_reported(shares: str, groups: str, words: str) -> None:
    """An invalid share gives one line that says what is wrong and what to write."""
    with pytest.raises(BadRequest, match=words):
        Shares.parse(shares, groups)


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("GPUQUEUE_HALF_LIFE", "5m", "at least 1h"),
        ("GPUQUEUE_URGENT", "ann bob", "names no users"),
        ("GPUQUEUE_GROUPS", "x", r"setting groups \(environment GPUQUEUE_GROUPS\): 'x' is no group"),
    ],
)
def test_settings_refuse_an_invalid_share(variable: str, value: str, words: str) -> None:
    """No worker starts with a policy that it cannot read."""
    with pytest.raises(BadRequest, match=words):
        Settings.load({"GPUQUEUE_CONFIG": "/dev/null", "GPUQUEUE_STATE_DIR": "/s", variable: value})
