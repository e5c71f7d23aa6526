"""Tests of the slots of the service: how many calls of one kind it serves at a time."""

from __future__ import annotations

import pytest

from gpuqueue.errors import TooManyRequests
from gpuqueue.service.site import Slots


def test_each_name_and_all_together_have_so_many_slots() -> None:
    """A slot that is given back can be taken again, once, and names without one take no memory."""
    slots = Slots(2, 3, "archives")
    first, _, third = slots.take("ann"), slots.take("ann"), slots.take("bob")
    for name in ("ann", "bob", "eve"):
        with pytest.raises(TooManyRequests, match="too many archives at a time"):
            slots.take(name)
    first()
    first()
    again = slots.take("ann")
    with pytest.raises(TooManyRequests):
        slots.take("eve")
    third()
    again()

    assert {"ann": 1} == dict(slots._taken)
