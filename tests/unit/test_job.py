"""The module for the code of a job: what it writes, what it refuses, and that it does nothing outside a job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuqueue.model.progress_reader import progress_of

#: A scalar and an array as torch and NumPy have them.
TENSORS = """
class Scalar:
    def __init__(self, value): self.value = value
    def item(self): return self.value
class Several:
    def item(self): raise RuntimeError("a Tensor with 2 elements cannot be converted to Scalar")
"""


def run(script: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a script that has imported the module."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("GPUQUEUE_", "RANK"))}
    code = f"from gpuqueue import job\n{TENSORS}\n{script}"
    return subprocess.run(
        [sys.executable, "-c", code], env={**own, **environ}, capture_output=True, text=True, check=False, timeout=60
    )


def written(place: Path, script: str, **environ: str) -> list[dict[str, Any]]:
    """Run a script as a job in *place*, and return its reports without their times."""
    done = run(script, GPUQUEUE_RUN_DIR=str(place), **environ)
    assert ("", 0) == (done.stderr, done.returncode)
    file = place / "metrics"
    plain = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [{name: value for name, value in line.items() if name != "at_s"} for line in plain]


def test_reports_are_lines_of_json(tmp_path: Path) -> None:
    """Scalars of torch and NumPy are numbers, and so is a truth value."""
    script = """
job.metric(val_acc=0.91, loss=Scalar(0.5), ok=True)
job.metric(step=3, val_acc=1)
job.param(lr=0.1, optimizer="adam", amp=True, layers=Scalar(4))
job.result({"best": Scalar(0.9), "files": ["a", None]})
"""

    assert [
        {"metric": {"val_acc": 0.91, "loss": 0.5, "ok": 1}, "step": None},
        {"metric": {"val_acc": 1}, "step": 3},
        {"param": {"lr": "0.1", "optimizer": "adam", "amp": "True", "layers": "4"}},
        {"result": {"best": 0.9, "files": ["a", None]}},
    ] == written(tmp_path, script)


@pytest.mark.parametrize(
    "call",
    [
        *("job.metric(a='0.9')", "job.metric(a=None)", "job.metric(a=[1])", "job.metric(a=Several())"),
        *("job.metric(a=1, step=1.5)", "job.metric(a=1, step=-1)", "job.param(a=None)", "job.param(a=[1])"),
        *("job.progress('1', 2)", "job.progress(1, 0)", "job.progress(-1, 2)"),
        *("job.result([1])", "job.result({'a': object()})", "job.result({'a': Several()})"),
    ],
)
def test_a_value_of_a_wrong_type_is_an_error_everywhere(tmp_path: Path, call: str) -> None:
    """It shows on a laptop too, before the script is a job."""
    for environ in ({}, {"GPUQUEUE_RUN_DIR": str(tmp_path)}):
        done = run(call, **environ)
        assert "TypeError" in done.stderr.splitlines()[-1]
    assert [] == list(tmp_path.iterdir())


def test_outside_a_job_nothing_happens(tmp_path: Path) -> None:
    """The script goes on, prints nothing and writes nothing."""
    script = f"""
import os, signal
os.chdir({str(tmp_path)!r})
job.progress(1, 2); job.metric(a=1); job.param(b="x"); job.result({{"c": 1}}); job.metric(**{{"bad name": 1}})
assert job.checkpoint_requested() is False
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
job.requeue()
print("goes on")
"""

    done = run(script)

    assert ("goes on\n", "", 0) == (done.stdout, done.stderr, done.returncode)
    assert [] == list(tmp_path.iterdir())


def test_what_is_not_accepted_is_printed_once_and_never_raised(tmp_path: Path) -> None:
    """A name, too many names, a large result, and a file that cannot be written."""
    script = """
for _ in range(3):
    job.metric(**{"bad name": 1})
    job.metric(**{f"m{number}": number for number in range(70)})
    job.result({"text": "x" * 20000})
"""
    done = run(script, GPUQUEUE_RUN_DIR=str(tmp_path))
    assert 0 == done.returncode
    assert [
        "gpuqueue: the metric 'bad name' is ignored: a name has up to 64 of the characters A-Z a-z 0-9 _ . / @ % + : -",
        "gpuqueue: a metric is ignored: a run has at most 64 of them",
        "gpuqueue: a result of 20012 bytes is not kept, at most 16384 are: write it to a file",
    ] == done.stderr.splitlines()

    (tmp_path / "metrics").unlink()
    (tmp_path / "metrics").symlink_to(tmp_path / "elsewhere")
    done = run("job.metric(a=1)\njob.metric(a=2)", GPUQUEUE_RUN_DIR=str(tmp_path))
    assert (0, 1) == (done.returncode, len(done.stderr.splitlines()))
    assert "gpuqueue: metrics cannot be written: " in done.stderr
    assert not (tmp_path / "elsewhere").exists()


def test_only_the_first_rank_reports(tmp_path: Path) -> None:
    """Otherwise each value of a training with eight processes counts eight times."""
    assert [] == written(tmp_path, "job.metric(a=1)", RANK="3")
    assert 1 == len(written(tmp_path, "job.metric(a=1)", RANK="0"))
    assert "" == run("job.progress(1, 2)", RANK="3", GPUQUEUE_RUN_DIR=str(tmp_path)).stdout


def test_progress_is_a_line_of_the_output_for_each_hundredth(tmp_path: Path) -> None:
    """A program may say it at each step. The queue reads it as it reads any other output."""
    script = "for step in range(1, 1001): job.progress(step, 1000)"

    lines = run(script, GPUQUEUE_RUN_DIR=str(tmp_path)).stdout.splitlines()

    assert 101 == len(lines)
    assert ["progress: 1/1000", "progress: 10/1000", "progress: 20/1000"] == lines[:3]
    for before in ("", "\r 5%|#   | 5/100 [00:01<00:20, 4.0it/s]"):  # the bar has not ended its line
        assert 0.02 == getattr(progress_of(f"{before}{lines[2]}\n".encode()), "share", None)


@pytest.mark.parametrize("number", ["SIGTERM", "SIGUSR1", "SIGUSR2"])
def test_a_warning_is_noted_and_the_job_runs_again(tmp_path: Path, number: str) -> None:
    """The exit code is that for which the queue runs the job again."""
    script = f"""
import os, signal
assert job.checkpoint_requested() is False
os.kill(os.getpid(), signal.{number})
if job.checkpoint_requested():
    print("saved")
    job.requeue()
"""

    done = run(script, GPUQUEUE_RUN_DIR=str(tmp_path))

    assert ("saved\n", "", 75) == (done.stdout, done.stderr, done.returncode)


def test_the_file_of_a_preemption_is_a_warning(tmp_path: Path) -> None:
    """A script with a handler of its own keeps it."""
    (tmp_path / "preempt.json").write_text("{}")
    script = """
import signal
def own(*_): pass
signal.signal(signal.SIGTERM, own)
print(job.checkpoint_requested(), signal.getsignal(signal.SIGTERM) is own)
"""

    assert "True True\n" == run(script, GPUQUEUE_RUN_DIR=str(tmp_path)).stdout


def test_a_child_that_inherits_the_handler_ends_by_the_signal(tmp_path: Path) -> None:
    """A data loader is ended with SIGTERM, and must not survive that."""
    script = """
import multiprocessing, signal, time
job.checkpoint_requested()
child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
child.start()
child.terminate()
child.join()
print(child.exitcode, job.checkpoint_requested())
"""

    assert "-15 False\n" == run(script, GPUQUEUE_RUN_DIR=str(tmp_path)).stdout


def test_the_module_needs_only_the_standard_library() -> None:
    """A job's own environment often has none of the dependencies."""
    script = """
import sys
outside = {name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names) - {"__main__", "gpuqueue"}
print(sorted(name for name in sys.modules if name.startswith("gpuqueue")), outside)
"""
    isolated = [sys.executable, "-S", "-c", f"from gpuqueue import job\n{script}"]
    done = subprocess.run(
        isolated, env={"PYTHONPATH": str(Path(__file__).parents[2])}, capture_output=True, text=True, check=True
    )

    assert "['gpuqueue', 'gpuqueue.job', 'gpuqueue.version'] set()\n" == done.stdout
