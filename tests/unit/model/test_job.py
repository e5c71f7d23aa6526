from __future__ import annotations

from importlib.resources import files
from itertools import chain
from pathlib import Path

import pytest

from gpuqueue.model.job import ENDS, TRANSITIONS, JobState
from gpuqueue.queue.scripts import ACTS, PRELUDE, SHARED, source


def test_the_scripts_and_the_lifecycle_have_the_same_arrows() -> None:
    """The arrows in the script headers are exactly the transitions in TRANSITIONS."""
    declared = {(str(start or "none"), str(end)) for start, ends in TRANSITIONS.items() for end in ends}

    drawn = set()
    for act in (*ACTS, "array"):
        for line in source(act).splitlines():
            if line.startswith("-- arrow: "):
                start, end = line.removeprefix("-- arrow: ").split(" -> ")
                drawn.add((start, end))

    assert declared == drawn


def test_every_lua_file_is_an_act_or_the_prelude() -> None:
    """Every Lua file is used: as an act, as part of the prelude, or as a shared part."""
    present = {entry.name.removesuffix(".lua") for entry in Path(str(files("gpuqueue.queue"))).glob("lua/*/*.lua")}

    assert {*ACTS, *PRELUDE, *chain.from_iterable(SHARED.values())} == present


def test_ends_are_final() -> None:
    """No transition leaves an end state."""
    assert not ENDS & set(TRANSITIONS)
    assert all(state.is_end == (state in ENDS) for state in JobState)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (JobState.RUNNING, "is running"),
        (JobState.HELD, "is held"),
        (JobState.CANCELLING, "is cancelling"),
        (JobState.SUCCEEDED, "has succeeded"),
        (JobState.FAILED, "has failed"),
        (JobState.CANCELLED, "was cancelled"),
        (JobState.LOST, "was lost"),
    ],
)
def test_a_state_has_a_phrase_for_messages(state: JobState, words: str) -> None:
    """The text for a state is correct English. For example it is "has succeeded" and not "is succeeded"."""
    assert words == state.in_words
