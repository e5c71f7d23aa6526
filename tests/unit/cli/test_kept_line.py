"""What ``gpuqueue show`` says about kept files."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from gpuqueue.cli.output.job_story import kept_line
from gpuqueue.model.run_files import KeptFiles, KeptState
from gpuqueue.words.values import when

UNTIL = datetime(2026, 12, 26, 12, 3, 11, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (KeptFiles(state=KeptState.KEPT, size_bytes=0), "0B (gpuqueue fetch --kept 81)"),
        (
            KeptFiles(state=KeptState.KEPT, size_bytes=2**30, expires_at=UNTIL),
            f"1G until {when(UNTIL)} (gpuqueue fetch --kept 81)",
        ),
        (KeptFiles(state=KeptState.WAITING, reason="they are packed later"), "not yet: they are packed later"),
        (
            KeptFiles(state=KeptState.FAILED, reason="they have\x1b 12G"),
            "nothing: they have\N{REPLACEMENT CHARACTER} 12G",
        ),
        (KeptFiles(state=KeptState.REMOVED, reason="too much"), "removed: too much"),
        (KeptFiles(state=KeptState.UNKNOWN, reason="gpu2 is away"), "not known: gpu2 is away"),
    ],
)
def test_each_state_is_one_line(found: KeptFiles, words: str) -> None:
    """A reason may come from another host, so it is made safe for a terminal."""
    assert f"  kept       {words}" == kept_line(found, "81")
