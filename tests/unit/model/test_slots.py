from __future__ import annotations

import pytest
from factories import make_device

from gpuqueue.errors import BadRequest
from gpuqueue.model.slots import rules_of
from gpuqueue.settings.settings import Settings


@pytest.mark.parametrize(
    ("name", "slots"), [("Tesla T4", 2), ("NVIDIA A100 MIG 1g.5gb", 1), ("NVIDIA A100", 3), ("H100", 8)]
)
def test_a_cap_is_that_of_the_first_rule_that_fits(name: str, slots: int) -> None:
    """The first matching rule decides the number of slots, and the host's default if none matches."""
    settings = Settings.load({"GPUQUEUE_CONFIG": "/dev/null", "GPUQUEUE_SLOTS_ON": "t4=2, 1g.5gb=1,A100=3"})

    assert slots == settings.slots_for(make_device(name=name))


@pytest.mark.parametrize("text", ["T4", "T4=", "=2", "T4=0", "T4=1001", "T4=two", "T4=2,", "…=2", "T4=-1"])
def test_what_is_no_cap_is_refused(text: str) -> None:
    """An invalid rule is refused with an example of a valid one."""
    with pytest.raises(BadRequest, match="is no slot limit: write"):
        rules_of(text)


def test_an_empty_setting_is_no_rule() -> None:
    """An empty setting has no rules, as by default."""
    assert () == rules_of(" ")
