"""What a job reports of its run comes into the history: with a real worker, shim, recorder and processes."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from bounded import until
from site_of_one import Site

from gpuqueue.model.job import JobState
from gpuqueue.model.job_values import JobValues
from gpuqueue.model.run import Record
from workers.run.directory import unsettled

ROOT = str(Path(__file__).parents[3])
TRAINS = f"""
import sys
sys.path.insert(0, {ROOT!r})
from gpuqueue import job
job.param(lr=float(sys.argv[1]), optimizer="adam")
for step in range(3):
    job.metric(step=step, val_acc=float(sys.argv[1]) * step, loss=float("nan") if step == 2 else 1 / (step + 1))
job.result({{"best": float(sys.argv[1]) * 2}})
print("metric: from_log=0.5 step=7")
print({{"loss_hf": 0.25, "epoch": 1.0}})
"""


@pytest.fixture
def working(site: Site, tmp_path: Path) -> Site:
    """Return a site with a worker and a recorder, and the script in *tmp_path*."""
    site.start_recorder()
    site.start_worker()
    (tmp_path / "train.py").write_text(TRAINS)
    return site


@pytest.fixture
def patient(store_url: str, tmp_path: Path) -> Iterator[Site]:
    """Return a site that gives a worker minutes to come back."""
    made = Site(tmp_path / "state", store_url, GPUQUEUE_HOST_LOST_AFTER="5m")
    yield made
    made.stop()


def submit(site: Site, where: Path, *words: str) -> int:
    """Submit a command, and return its id."""
    return int(site.cli("submit", "--no-git", "--cwd", str(where), "--mem", "1M", "--", *words).stdout.split()[0])


def values_of(record: Record) -> JobValues:
    """Return what the last run has reported."""
    assert record.last_run is not None
    assert record.last_run.values is not None, record.last_run
    return record.last_run.values


def test_values_are_columns_and_an_order_of_the_history_and_in_show(working: Site, tmp_path: Path) -> None:
    """They are the same in each place, and NaN is valid JSON."""
    ids = [submit(working, tmp_path, sys.executable, "train.py", lr) for lr in ("0.1", "0.4", "0.2")]
    other = submit(working, tmp_path, "true")
    records = {job: working.until_recorded(job) for job in (*ids, other)}

    values = values_of(records[ids[1]])
    assert {"lr": "0.4", "optimizer": "adam"} == values.params
    assert {"best": 0.8} == values.result
    assert {"val_acc": (0.8, 2), "from_log": (0.5, 7), "loss_hf": (0.25, None)} == {
        each.name: (each.last.value, each.last.step)
        for each in values.metrics
        if each.name in {"val_acc", "from_log", "loss_hf"}
    }
    loss = next(each for each in values.metrics if each.name == "loss")
    assert ("NaN", 0.5, 1.0, 3) == (
        loss.last.value,
        loss.min and loss.min.value,
        loss.max and loss.max.value,
        len(loss.curve),
    )

    table = working.cli("history", "--sort", "val_acc", "--columns", "id,lr,val_acc,loss").stdout.splitlines()
    assert ["ID", "lr", "val_acc", "loss"] == table[0].split()
    rows = [[str(ids[1]), "0.4", "0.8", "nan"], [str(ids[2]), "0.2", "0.4", "nan"], [str(ids[0]), "0.1", "0.2", "nan"]]
    assert [*rows, [str(other), "-", "-", "-"]] == [line.split() for line in table[1:]]
    page = working.cli("history", "--sort", "val_acc", "-r", "--after", str(ids[0]), "--columns", "id", "--csv").stdout
    assert ["id", str(ids[2]), str(ids[1]), str(other)] == page.splitlines()
    mistyped = working.cli("history", "--sort", "val_ac", check=False)
    assert (2, True) == (mistyped.returncode, "--sort 'val_ac' is no order" in mistyped.stderr)

    shown = working.cli("show", str(ids[1])).stdout
    assert "  params     lr=0.4, optimizer=adam\n" in shown
    assert "  metric     val_acc 0.8 at step 2, min 0 at step 0, max 0.8 at step 2, 3 values\n" in shown
    assert '  result     {"best": 0.8}\n' in shown
    plain = json.loads(working.cli("show", str(ids[1]), "--json").stdout, parse_constant=pytest.fail)
    metrics = {each["name"]: each for each in plain["runs"][-1]["values"]["metrics"]}
    assert ("NaN", 3) == (metrics["loss"]["last"]["value"], len(metrics["loss"]["curve"]))
    (listed,) = json.loads(working.cli("history", "--sort", "val_acc", "--limit", "1", "--json").stdout)
    assert [[]] * 5 == [each["curve"] for each in listed["runs"][-1]["values"]["metrics"]]


@pytest.mark.promise("P4")
def test_a_killed_worker_neither_loses_nor_doubles_a_value(patient: Site, tmp_path: Path) -> None:
    """The next worker goes on where the figures of the last one end, while the job writes all the time."""
    site = patient
    site.start_recorder()
    worker = site.start_worker()
    (tmp_path / "counts.py").write_text(f"""
import os, sys, time
sys.path.insert(0, {ROOT!r})
from gpuqueue import job
number = 0
while not os.path.exists("stop"):
    job.metric(step=number, number=number)
    number += 1
    time.sleep(0.0005)
open("total", "w").write(str(number))
""")
    job = submit(site, tmp_path, sys.executable, "counts.py")
    site.until_state(job, JobState.RUNNING)

    def saved() -> int:
        (directory,) = unsettled(site.settings.runs_dir)
        plain = directory.meters()
        values = None if plain is None else plain.plain("values")
        metrics = values["collected"]["metrics"] if isinstance(values, dict) else {}
        return metrics["number"]["count"] if metrics else 0

    for _ in range(2):
        before = saved()
        until(lambda before=before: saved() > before, what="values in the figures of the run")  # type: ignore[misc]
        site.end(worker, signal.SIGKILL)
        worker = site.start_worker()
    (tmp_path / "stop").touch()
    (number,) = values_of(site.until_recorded(job)).metrics

    total = int((tmp_path / "total").read_text())
    assert total == number.count
    assert (total - 1, total - 1) == (number.last.step, number.last.value)
    steps = [step for _, step, _ in number.curve]
    assert 0 == steps[0]
    regular = [step for step in steps[:-1] if step is not None]
    assert 1 == len({after - before for before, after in pairwise(regular)})


def test_a_runaway_job_is_bounded_and_its_values_are_incomplete(working: Site, tmp_path: Path) -> None:
    """It writes more than is kept. Its end is reported as ever, with a note."""
    (tmp_path / "floods.py").write_text("""
import os
lines = b'{"metric":{"a":1},"x":"%s"}\\n' % (b"x" * 1000) * 128
file = os.open(os.environ["GPUQUEUE_RUN_DIR"] + "/metrics", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
for _ in range(128):
    os.write(file, lines)
os.write(file, b'{"metric":{"a":2}}\\n')
""")
    job = submit(working, tmp_path, sys.executable, "floods.py")
    record = working.until_recorded(job)

    assert JobState.SUCCEEDED is record.job.state
    (metric,) = values_of(record).metrics
    assert (2.0, True) == (metric.last.value, 4096 < metric.count < 128 * 128)
    assert record.last_run is not None
    (note,) = record.last_run.notes
    assert note.words.startswith("its metrics are incomplete: ")
    assert f"gpuqueue: {note.words}\n" in working.cli("logs", str(job)).stdout


@pytest.mark.parametrize("place", ["ln -s $PWD/secret", "mkfifo", "mkdir", "ln -s /dev/zero"])
def test_something_else_in_place_of_the_file_is_not_read(working: Site, tmp_path: Path, place: str) -> None:
    """No link is followed, no pipe is waited for, and the run ends as ever."""
    (tmp_path / "secret").write_text('{"metric":{"a":1}}\n')
    job = submit(working, tmp_path, "sh", "-c", f"{place} $GPUQUEUE_RUN_DIR/metrics")
    record = working.until_recorded(job)

    assert JobState.SUCCEEDED is record.job.state
    assert record.last_run is not None
    assert record.last_run.values is None
    assert '{"metric":{"a":1}}\n' == (tmp_path / "secret").read_text()
