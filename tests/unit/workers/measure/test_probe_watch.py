"""Tests of the decision when the run of a probe ends."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from gpuqueue.errors import Unreachable
from gpuqueue.model.probe import Probe
from gpuqueue.model.run import RunDevice
from gpuqueue.text.units import GIB, MIB
from workers.measure.active_runs import LiveRun
from workers.measure.sampler import Probes, ProbeWatch
from workers.run.directory import Held, RunDir


def first_end(watch: ProbeWatch, peaks: list[float], steps: list[int | None] | None = None) -> int | None:
    """Return the second in which *watch* ends a run with these peaks in GiB, one each second."""
    for second, peak in enumerate(peaks):
        count = None if steps is None else steps[second]
        if watch.reason(int(peak * GIB), float(second), count) is not None:
            return second
    return None


def test_a_flat_peak_ends_the_run() -> None:
    """The time counts from the last growth."""
    watch = ProbeWatch(Probe(flat_s=3))

    assert 6 == first_end(watch, [0, 1, 2, 5, 5, 5, 5, 5])


def test_a_run_that_uses_no_memory_yet_is_not_flat() -> None:
    """A program that still imports has shown nothing."""
    assert first_end(ProbeWatch(Probe(flat_s=3)), [0.0] * 50) is None


def test_slow_growth_is_growth() -> None:
    """A peak that creeps is compared with its last growth; noise below one percent does not count."""
    assert first_end(ProbeWatch(Probe(flat_s=3)), [1 + second / 100 for second in range(50)]) is None
    assert 3 == first_end(ProbeWatch(Probe(flat_s=3)), [1 + second / 10_000 for second in range(50)])


def test_so_many_steps_end_the_run() -> None:
    """The steps of several bars add up: a bar with a smaller count is a new one. Without a bar nothing counts."""
    watch = ProbeWatch(Probe(steps=10))

    assert 4 == first_end(watch, [1.0] * 6, [None, 4, 6, 1, 4, 5])
    assert first_end(ProbeWatch(Probe(steps=10)), [1.0] * 50, [None] * 50) is None


def test_without_a_rule_only_the_time_limit_ends_it() -> None:
    """A probe without rules never ends early."""
    assert first_end(ProbeWatch(Probe()), [1.0] * 100, [50] * 100) is None


@pytest.fixture
def run(tmp_path: Path) -> LiveRun:
    """Return a live run of a probe that ends after three steps."""
    held = Held(job_id=1, token="1.a", devices=(RunDevice(uuid="dev-0", lease_bytes=GIB),), probe="steps=3")
    return LiveRun(held=held, directory=RunDir.create(tmp_path, held), since_s=0.0)


def test_a_run_is_asked_to_end_once_and_notes_why(run: LiveRun) -> None:
    """The steps are those in its log. The shim reads what to end it as."""
    probes = Probes()
    run.directory.log.write_text("step 2/9\n")
    probes.check([run], 1.0)
    assert not os.path.lexists(run.directory.path / "cancel")

    run.directory.log.write_text("step 3/9\n")
    for second in (2.0, 3.0):
        probes.check([run], second)

    assert "timed_out" == (run.directory.path / "cancel").read_text()
    assert ["the probe ended it: it has made 3 steps"] == list(run.notes)


def test_the_reason_is_there_before_the_run_ends(run: LiveRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run can end, and its notes be sent, while the sampler still asks for its end.

    Regression: ``gpuqueue probe --flat 1s`` ended with "its time was over" after 1.5 s.
    """
    sent: list[str] = []
    monkeypatch.setattr(RunDir, "ask_end", lambda *_: run.send_notes(sent.append))
    run.directory.log.write_text("step 3/9\n")

    Probes().check([run], 1.0)

    assert ["the probe ended it: it has made 3 steps"] == sent


def test_the_end_follows_a_note_that_is_just_being_sent(run: LiveRun) -> None:
    """The end of a run is reported once the heartbeats have sent the note that they took.

    Regression: the record of a probe could be read without the reason for its end, which the heartbeats sent late.
    """
    sent: list[str] = []
    began, may_go = threading.Event(), threading.Event()

    def slowly(text: str) -> None:
        began.set()
        assert may_go.wait(60)
        sent.append(text)

    def report() -> None:
        run.send_notes(sent.append)
        sent.append("the end")

    run.notes.append("why")
    heartbeats, step = threading.Thread(target=run.send_notes, args=[slowly]), threading.Thread(target=report)
    heartbeats.start()
    assert began.wait(60)
    step.start()
    step.join(0.2)
    may_go.set()
    heartbeats.join(60)
    step.join(60)

    assert ["why", "the end"] == sent


def test_a_note_that_cannot_be_sent_stays_the_first(run: LiveRun) -> None:
    """The store is gone while the second of three notes is sent: the next try goes on with it."""
    sent: list[str] = []

    def fails_once(text: str) -> None:
        if text == "b" and "b failed" not in sent:
            sent.append("b failed")
            raise Unreachable("gone")
        sent.append(text)

    run.notes.extend("abc")
    with pytest.raises(Unreachable):
        run.send_notes(fails_once)
    run.send_notes(fails_once)

    assert ["a", "b failed", "b", "c"] == sent


def test_the_rule_is_kept_for_a_worker_that_adopts_the_run(run: LiveRun) -> None:
    """The claim in the run directory has the rule."""
    kept = run.directory.held()

    assert kept is not None
    assert "steps=3" == kept.probe


def test_a_rule_of_a_later_version_leaves_the_run_alone(run: LiveRun, tmp_path: Path) -> None:
    """A worker that cannot read the rule leaves the end to the time limit."""
    held = Held(job_id=2, token="1.b", devices=run.held.devices, probe="tokens=9")
    other = LiveRun(held=held, directory=RunDir.create(tmp_path / "other", held), since_s=0.0)
    other.meter("dev-0").note(64 * MIB, at_s=0.0, shared=False, device_bytes=64 * MIB)
    probes = Probes()

    for second in range(0, 1000, 100):
        probes.check([other], float(second))

    assert not os.path.lexists(other.directory.path / "cancel")
