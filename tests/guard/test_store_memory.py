"""Tests that bound the store's memory for a waiting job. It decides whether a million of them fit into a machine."""

from __future__ import annotations

import pytest
from factories import make_spec
from guard.bounds import Bound
from guard.one_life import OneLife

from gpuqueue.codec.request import encode_spec
from gpuqueue.model.array import Array
from gpuqueue.queue.keys import OUTBOX

#: Jobs that wait before the measurement, and jobs that are measured. From about a hundred jobs on the store keeps sets
#: in another encoding.
BEFORE, COUNTED = 400, 400
#: Bytes for a job besides the two copies of its spec (its own, and that of the submit in the outbox). Measured: 472.
BESIDE_BYTES = Bound(236, 520)
#: Keys of a job: its fields, its spec, the answer to its submit.
KEYS = Bound(3, 3)
#: Largest difference between the sizes of two arrays, in bytes.
FEW_BYTES = 256


@pytest.mark.full
def test_a_waiting_job_takes_what_was_agreed(life: OneLife) -> None:
    """A waiting job takes no more memory than agreed.

    The spec is stored twice until the history has the submit, so the rest must stay small.
    """
    for _ in range(BEFORE):
        life.queue.requests.submit(make_spec())
    before = life.kept()

    for _ in range(COUNTED):
        life.queue.requests.submit(make_spec())

    after = life.kept()
    each_bytes = (sum(after.values()) - sum(before.values())) / COUNTED
    BESIDE_BYTES.hold(each_bytes - 2 * len(encode_spec(make_spec())), "bytes for a waiting job beside its spec")
    KEYS.hold((len(after) - len(before)) / COUNTED, "keys for a waiting job")


def test_an_array_of_ten_thousand_takes_what_one_of_ten_takes(life: OneLife) -> None:
    """An array of ten thousand takes the memory of an array of ten.

    An array is one record; its members are created when they are claimed. Only the numbers in it have a few more
    digits.
    """
    found = []
    for members in (5, 10, 10_000):  # the first creates keys that the later ones share
        before = _bytes_in_the_queue(life)
        life.queue.requests.submit(make_spec(array=Array.parse(f"0-{members - 1}")))
        found.append(_bytes_in_the_queue(life) - before)

    assert abs(found[2] - found[1]) <= FEW_BYTES, found


def _bytes_in_the_queue(life: OneLife) -> int:
    """Return the size of all keys but the outbox, for which the store allocates large blocks."""
    return sum(each for key, each in life.kept().items() if key != OUTBOX)
