"""How much of the store's memory a waiting job takes: with it a million of them fit into a machine, or do not."""

from __future__ import annotations

import pytest
from factories import make_spec
from guard.bounds import Bound
from guard.one_life import OneLife

from gpuqueue.codec import encode_spec
from gpuqueue.model.array import Array
from gpuqueue.queue.keys import OUTBOX

#: How many wait before it is counted: from about a hundred on the store keeps sets in another form.
BEFORE, COUNTED = 400, 400
#: Bytes for a job beside the two copies of its spec (its own, and the submit in the outbox). Measured: 472.
BESIDE_BYTES = Bound(236, 520)
#: Keys: its fields, its spec, the answer to its submit.
KEYS = Bound(3, 3)
#: What two arrays may differ by, in bytes.
FEW_BYTES = 256


@pytest.mark.full
def test_a_waiting_job_takes_what_was_agreed(life: OneLife) -> None:
    """The spec is there twice until the history has the submit: what else there is must stay small."""
    for _ in range(BEFORE):
        life.queue.submit(make_spec())
    before = life.kept()

    for _ in range(COUNTED):
        life.queue.submit(make_spec())

    after = life.kept()
    each_bytes = (sum(after.values()) - sum(before.values())) / COUNTED
    BESIDE_BYTES.hold(each_bytes - 2 * len(encode_spec(make_spec())), "bytes for a waiting job beside its spec")
    KEYS.hold((len(after) - len(before)) / COUNTED, "keys for a waiting job")


def test_an_array_of_ten_thousand_takes_what_one_of_ten_takes(life: OneLife) -> None:
    """It is one record: its members are made when they are claimed. The numbers in it have a few digits more."""
    found = []
    for members in (5, 10, 10_000):  # the first brings keys that every later one finds
        before = _bytes_in_the_queue(life)
        life.queue.submit(make_spec(array=Array.parse(f"0-{members - 1}")))
        found.append(_bytes_in_the_queue(life) - before)

    assert abs(found[2] - found[1]) <= FEW_BYTES, found


def _bytes_in_the_queue(life: OneLife) -> int:
    """Return what all takes but the outbox, which the store gives room in large pieces."""
    return sum(each for key, each in life.kept().items() if key != OUTBOX)
