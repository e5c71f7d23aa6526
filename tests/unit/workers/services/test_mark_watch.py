"""The rules by which runs are marked and ended, on files and figures of a run. The store is a list of reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from bounded import until
from factories import make_spec

from gpuqueue.model.device import DeviceKind, Utilisation
from gpuqueue.model.run import EndingKind, RunDevice
from gpuqueue.model.run_mark import MarkKind
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.settings.settings import Settings
from workers.measure import active_runs
from workers.measure.active_runs import LiveRun
from workers.run.directory import Held, RunDir
from workers.services import mark_watch
from workers.services.mark_watch import MarkWatch

GPU = RunDevice(uuid="GPU-0", lease_bytes=1, kind=DeviceKind.GPU)
HELD = Held(job_id=7, token="1.ab", devices=(GPU,))
#: The start of the run on the host's clock, and the setting of the site.
SINCE_S, AFTER_S = 1000.0, 100.0


@dataclass
class Watched:
    """A run, a watch, and what it has reported: kind, stage and what the mark names."""

    run: LiveRun
    settings: Settings
    now_s: float = SINCE_S
    reports: list[tuple[str, int, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.watch = MarkWatch(self.settings, cast("JobQueue", self), cast("Any", self))

    @property
    def runs(self) -> Watched:
        """Return the part of the queue that takes marks."""
        return self

    def mark(self, _job_id: int, _token: str, kind: MarkKind, *, stage: int, what: str, **_: object) -> bool:
        """Take a report."""
        self.reports.append((kind.value, stage, what))
        return True

    def monotonic_s(self) -> float:
        """Return the time of the clock."""
        return self.now_s

    def write(self, text: str) -> None:
        """Write output of the job."""
        with (self.run.directory.path / "log").open("a") as log:
            log.write(text)

    def go_on(self, seconds: float, busy: float | None = None) -> None:
        """Let time pass in steps of at most five seconds: the use of the device is measured and the run is checked."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s = min(end_s, self.now_s + 5.0)
            own = None if busy is None else Utilisation(busy=busy)
            self.run.meter("GPU-0").note_use(own, self.now_s - SINCE_S)
            self.run.read_output(self.now_s)
            self.run.values.read(SINCE_S, self.now_s)
            self.watch.check(self.run)

    def asked_end(self) -> str | None:
        """Return the kind of ending that the shim was asked for."""
        file = self.run.directory.path / "cancel"
        return file.read_text() if file.exists() else None


Make = Callable[..., Watched]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return a function that makes a new run with the given parts of its claim, or one that a worker has adopted."""

    def made(*, adopted: LiveRun | None = None, disk_low_bytes: int | None = None, **held: Any) -> Watched:
        settings = cast("Settings", SimpleNamespace(stalled_after_s=AFTER_S, disk_low_bytes=disk_low_bytes))
        if adopted is not None:
            adopted.directory.keep_meters(adopted.figures())
            run = LiveRun(held=adopted.held, directory=RunDir(adopted.directory.path), since_s=SINCE_S)
            run.resume()
            return Watched(run, settings)
        claim = replace(HELD, **held)
        directory = RunDir.create(tmp_path / "runs", claim)
        return Watched(LiveRun(held=claim, directory=directory, since_s=SINCE_S, spec=make_spec()), settings)

    return made


def test_a_run_that_has_worked_and_is_silent_is_stalled_until_it_works_again(make: Make) -> None:
    """The line about the mark in its own log is no output of the job."""
    seen = make()
    seen.write("begun\n")
    seen.go_on(60, busy=0.5)
    seen.go_on(AFTER_S - 5, busy=0.0)
    assert [] == seen.reports
    seen.go_on(20, busy=0.0)
    assert [("stalled", 1, "")] == seen.reports
    log = (seen.run.directory.path / "log").read_text()
    assert "gpuqueue: it writes no output and does not use its devices, for 1:40\n" in log
    seen.go_on(2 * AFTER_S, busy=0.0)
    assert 1 == len(seen.reports)

    seen.write("again\n")
    seen.go_on(5, busy=0.0)
    assert [("stalled", 1, ""), ("stalled", 0, "")] == seen.reports


@pytest.mark.parametrize("guess", ["never used", "never printed", "unknown use", "terminal", "in use", "output"])
def test_the_rule_is_off_where_it_would_guess(make: Make, guess: str) -> None:
    seen = make(has_terminal=guess == "terminal")
    if guess != "never printed":
        seen.write("begun\n")
    seen.go_on(60, busy=0.0 if guess == "never used" else 0.5)
    for _ in range(3):
        if guess == "output":
            seen.write("one more line\n")
        seen.go_on(AFTER_S * 0.9, busy={"unknown use": None, "in use": 0.01}.get(guess, 0.0))

    assert [] == seen.reports


def test_a_run_is_ended_once_it_has_stalled_for_as_long_as_asked(make: Make) -> None:
    """The option applies also to a run that has never used its device, and goes on in a worker that adopts the run."""
    first = make(stop_when_stalled_s=60.0)
    first.write("begun\n")
    first.go_on(50, busy=0.0)
    seen = make(adopted=first.run)
    seen.now_s = first.now_s
    assert None is seen.asked_end()
    seen.go_on(20, busy=0.0)

    assert EndingKind.STALLED.value == seen.asked_end()
    assert seen.run.end_words.startswith("no output and no use of its devices for 1:0")
    assert {0} == {stage for _, stage, _ in seen.reports}, "the store is told that there is no mark"


@pytest.mark.parametrize(
    ("kind", "end"),
    [(DeviceKind.CPU, "stalled"), (DeviceKind.SIMULATED, "stalled"), (DeviceKind.GPU, None), (None, None)],
)
def test_without_a_gpu_the_output_alone_says_that_a_run_has_stalled(
    make: Make, kind: DeviceKind | None, end: str | None
) -> None:
    """Where the use of a GPU is unknown, it is never ended."""
    seen = make(stop_when_stalled_s=60.0, devices=(replace(GPU, kind=kind),))
    seen.go_on(70)

    assert end == seen.asked_end()


def test_the_same_step_is_marked_after_the_time_and_five_times_the_longest_step(make: Make) -> None:
    """A new worker knows since when. Nothing is said of a bar that is complete: the run saves its work."""
    first = make()
    for step in range(4):
        first.write(f"step {step}/10\n")
        first.go_on(40)
    first.go_on(150)
    seen = make(adopted=first.run)
    seen.now_s = first.now_s
    assert [] == first.reports
    seen.reports.clear()
    seen.go_on(20)
    assert ("step", 1, "step 3/10") == seen.reports[-1]

    seen.write("step 4/10\n")
    seen.go_on(5)
    assert ("step", 0, "") == seen.reports[-1]
    seen.write("step 10/10\n")
    seen.go_on(900)
    assert ("step", 0, "") == seen.reports[-1]


def test_a_long_first_step_and_a_terminal_are_never_at_the_same_step(make: Make) -> None:
    first, terminal = make(), make(has_terminal=True, token="1.cd")
    first.write("epoch 1/20\n")
    first.go_on(900)
    for step in range(4):
        terminal.write(f"step {step}/10\n")
        terminal.go_on(10)
    terminal.go_on(900)

    assert [] == first.reports + terminal.reports


def test_a_metric_that_is_no_number_is_marked_and_alternation_makes_no_flood(make: Make) -> None:
    seen = make()
    for number in range(20):
        seen.write(f"metric: loss={'nan' if number % 2 else 0.5} step={number}\n")
        seen.go_on(5)
    assert [("nan", 1, "loss is NaN at step 1")] == seen.reports
    seen.write("metric: loss=0.5\n")
    seen.go_on(mark_watch.OVER_S[MarkKind.NAN] + 10)
    assert ("nan", 0, "") == seen.reports[-1]
    assert None is seen.asked_end()


@pytest.mark.parametrize(
    ("lines", "wrong"),
    [
        ("metric: loss=nan", "loss is NaN"),
        ("metric: train_loss=0.5\nmetric: train_loss=inf", "train_loss is Infinity"),
        ("metric: best_loss=inf", None),
        ("metric: snr=1\nmetric: snr=inf", None),
        ("metric: loss=nan\nmetric: loss=0.5", None),
        ("{'loss': nan, 'epoch': 0.5}", "loss is NaN"),
    ],
)
def test_a_nan_ends_the_run_if_its_submitter_wants_that(make: Make, lines: str, wrong: str | None) -> None:
    """A loss that was finite may not be infinite either. It counts what the last value is."""
    seen = make(stop_on_nan=True)
    seen.write(f"{lines}\n")
    seen.go_on(5)

    assert (wrong and "nan", wrong or "") == (seen.asked_end(), seen.run.end_words)


def test_a_disk_that_is_nearly_full_is_marked(make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Both the disk of the log and that of the working directory count. One that does not answer is left out."""
    free = {str(tmp_path): 100 * 2**20}
    monkeypatch.setattr(active_runs.Room, "of", lambda place: active_runs.Room(free.get(str(place), 2**40), 2**42))
    monkeypatch.setattr(active_runs, "DISK_S", 0.0)
    seen = make(disk_low_bytes=2**30, cwd=str(tmp_path))

    def marked() -> bool:
        seen.go_on(5)
        return bool(seen.reports)

    until(marked, what="the mark")
    assert [("disk", 1, "the disk of its working directory is nearly full, with 100M free")] == seen.reports
