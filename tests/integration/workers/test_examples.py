"""Tests that the scripts in examples/ run unchanged on any device, and that their training works."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(300)  # a busy machine imports torch in a minute
EXAMPLES = Path(__file__).parents[3] / "examples"
SCRIPTS = ("train.py", "train_two_devices.py")
LOSS = re.compile(r"^epoch +\d+ +loss (\d+\.\d+) +accuracy (\d\.\d+)$", re.MULTILINE)


@pytest.fixture(scope="module", autouse=True)
def _torch() -> None:
    """Skip where PyTorch or scikit-learn is missing, but fail in CI, where both must be installed."""
    missing = [name for name in ("torch", "sklearn") if importlib.util.find_spec(name) is None]
    if missing and os.environ.get("CI"):
        pytest.fail(f"CI must run the examples, and there is no {' and no '.join(missing)}")
    if missing:
        pytest.skip(f"the examples need {' and '.join(missing)}")


def run(script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run one example in its own process, as a user would."""
    return subprocess.run(
        [sys.executable, str(EXAMPLES / script), *arguments],
        capture_output=True,
        text=True,
        timeout=250,
        # Without coverage, whose start in each process takes a training longer than the training itself.
        env={**{name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}, **environment},
        check=False,
    )


@pytest.mark.full
@pytest.mark.parametrize("script", SCRIPTS)
def test_example_learns(script: str) -> None:
    """Three epochs end with exit code 0, a falling loss and good accuracy, and name the device."""
    done = run(script, "--epochs", "3")
    epochs = [(float(loss), float(share)) for loss, share in LOSS.findall(done.stdout)]

    assert done.returncode == 0, done.stderr
    assert len(epochs) == 3
    assert epochs[-1][0] < epochs[0][0] / 2
    assert epochs[-1][1] > 0.8
    assert re.search(r"\bdevice (cuda:\d|cpu)\b", done.stdout)
    assert "CUDA_VISIBLE_DEVICES=" in done.stdout


@pytest.mark.full
def test_seed_repeats_a_run() -> None:
    """The same seed on one core of the CPU gives the same losses."""
    one, same = (run("train.py", "--epochs", "1", CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1") for _ in range(2))

    assert len(LOSS.findall(one.stdout)) == 1
    assert LOSS.findall(one.stdout) == LOSS.findall(same.stdout)


@pytest.mark.full
def test_two_replicas_stay_equal() -> None:
    """Without two GPUs the script uses two replicas on the CPU, and they stay equal to the last bit."""
    done = run("train_two_devices.py", "--epochs", "1", CUDA_VISIBLE_DEVICES="")

    assert "fewer than two GPUs: two replicas on the CPU instead" in done.stdout
    assert "replica 1: device cpu" in done.stdout
    assert "the replicas are 0.0e+00 apart" in done.stdout


@pytest.mark.full
@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("missing", ["torch", "sklearn"])
def test_missing_library_is_one_clear_line(script: str, missing: str, tmp_path: Path) -> None:
    """Without PyTorch or scikit-learn an example exits with 1 and one line that names the remedy."""
    (tmp_path / f"{missing}.py").write_text(f"raise ModuleNotFoundError('absent', name={missing!r})\n")
    done = run(script, PYTHONPATH=str(tmp_path))

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"{script}: there is no {missing} here: pip install torch scikit-learn\n"
