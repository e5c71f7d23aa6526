from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from workers.measure.external_processes import Strangers, foreign_bytes


def test_a_notebook_is_remembered_at_its_peak_for_a_while() -> None:
    """It freed 8 and will want them back; after five minutes of quiet nobody expects that any more."""
    strangers = Strangers(remember_s=300)

    counted = [strangers.note({7: used}, (), now_s)[7] for now_s, used in ((0, 10), (10, 2), (300, 3), (301, 3))]

    assert [10, 10, 10, 3] == counted


def test_the_largest_of_the_last_minutes_is_remembered_and_not_the_last_record() -> None:
    """A notebook that took 20 once and 15 since may want 15 again, though its 20 are forgotten by now."""
    strangers = Strangers(remember_s=300)
    looks = ((0, 20), (100, 15), (299, 15), (301, 1), (598, 2), (600, 1))

    counted = [strangers.note({7: used}, (), now_s)[7] for now_s, used in looks]

    assert [20, 20, 20, 15, 15, 2] == counted


def test_a_stranger_that_is_gone_is_forgotten_at_once() -> None:
    """Dead processes want nothing back; a later one with the same pid starts anew."""
    strangers = Strangers()
    strangers.note({7: 10}, (), 0.0)

    assert {} == strangers.note({}, (), 1.0)
    assert {7: 1} == strangers.note({7: 1}, (), 2.0)


def test_our_own_processes_and_silent_ones_are_no_named_strangers() -> None:
    """What the driver does not tell is in the used bytes already."""
    assert {9: 3} == Strangers().note({7: 5, 8: None, 9: 3}, {7}, 0.0)


def foreign(**changes: Any) -> int:
    """Return the foreign bytes of a device on which 20 are used: 12 by us, 5 by a stranger, 3 by nobody named."""
    look: dict[str, Any] = {
        "used": 20,
        "processes": {1: 12, 2: 5},
        "ours": {1},
        "strangers": {2: 5},
        "leased": 0,
    }
    return foreign_bytes(**{**look, **changes})


def test_foreign_is_all_that_is_not_ours() -> None:
    """Strangers at their remembered peak, and what no process owns."""
    assert 8 == foreign()
    assert 13 == foreign(strangers={2: 10})
    assert 5 == foreign(used=17, processes={1: 12}, strangers={})


def test_memory_of_ours_that_the_driver_does_not_tell_is_not_counted_twice() -> None:
    """It is in the used bytes and in the ledger: the lease is taken off once."""
    assert 8 == foreign(processes={1: None, 2: 5}, leased=12)
    assert 5 == foreign(processes={1: None, 2: 5}, leased=15)


def test_beside_a_stranger_that_is_not_told_either_nothing_is_taken_for_ours() -> None:
    """Nobody can say whose the memory is: the card promises less than it could, and never more than it has."""
    assert 20 == foreign(processes={1: None, 2: None}, strangers={}, leased=12)


@given(
    ours=st.dictionaries(st.integers(1, 9), st.integers(0, 50), max_size=5),
    others=st.dictionaries(st.integers(10, 19), st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=5),
    unnamed=st.integers(0, 20),
    granted=st.dictionaries(st.integers(1, 12), st.integers(0, 60), max_size=8),
)
def test_never_more_is_promised_than_is_free_less_what_was_granted_and_not_yet_taken(
    ours: dict[int, int], others: dict[int, tuple[int, int]], unnamed: int, granted: dict[int, int]
) -> None:
    """The claim's sum (see state.lua) with this figure can never pass the driver's own, whoever holds what."""
    total = 1000
    used = sum(ours.values()) + sum(now for now, _ in others.values()) + unnamed
    counted = foreign_bytes(
        used=used,
        processes={**ours, **{pid: now for pid, (now, _) in others.items()}},
        ours=set(ours),
        strangers={pid: max(now, before) for pid, (now, before) in others.items()},
        leased=0,
    )
    leases = {**dict.fromkeys(ours, 0), **granted}

    available = total - counted - sum(max(lease, ours.get(pid, 0)) for pid, lease in leases.items())

    not_yet_taken = sum(max(0, lease - ours.get(pid, 0)) for pid, lease in leases.items())
    assert available <= total - used - not_yet_taken
