"""The recipes of docs/howto/launchers.md and sweep-tools.md, each with the real package and a real queue.

RECIPES_PYTHON names a Python that has them: ``pip install accelerate lightning optuna ray[tune] wandb``.
A test is skipped where its own package is missing. Nothing here needs a GPU or the network.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from forked_command import BIN
from site_of_one import Site

from gpuqueue.model.job import JobState

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[3]
PYTHON = os.environ.get("RECIPES_PYTHON", sys.executable)
#: How long a training may take on a busy machine, in seconds.
ENDS_S = 800
ENDS = [state for state in JobState if state.is_end]

TRIALS = """
import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

study = optuna.load_study(study_name="bert", storage=JournalStorage(JournalFileBackend("bert.journal")))
print([trial.state.name for trial in study.trials])
"""
DDP = """
import os
import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, _):
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, logger=False,
                            enable_checkpointing=False, enable_progress_bar=False)
trainer.fit(Net(), DataLoader(TensorDataset(torch.randn(16, 4)), batch_size=8))
print("rank", trainer.global_rank, "of", trainer.world_size, "port", os.environ["MASTER_PORT"], flush=True)
"""
ACCELERATE = """
import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
total = accelerator.reduce(torch.ones(1), "sum").item()
print("rank", accelerator.process_index, "of", accelerator.num_processes, "sum", total, flush=True)
"""


def needs(package: str) -> None:
    """Skip the test where *package* is missing."""
    words = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    if subprocess.run([PYTHON, "-c", words], check=False, timeout=60).returncode != 0:
        pytest.skip(f"{package} is not installed in {PYTHON}: RECIPES_PYTHON names a Python that has it")


def blocks(page: str, language: str) -> list[str]:
    """Return the blocks of code of a page in *language*."""
    parts = (ROOT / "docs" / "howto" / page).read_text().split("```")[1::2]
    return [text.removeprefix(f"{language}\n") for text in parts if text.startswith(f"{language}\n")]


def output_of(queue: Site, place: Path, *words: str) -> str:
    """Run a job in *place* and return its output. It must succeed."""
    done = subprocess.run(
        [BIN / "gpuqueue", "run", "--mem", "4G", "--python", PYTHON, *words],
        cwd=place,
        env=queue.environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=ENDS_S,
    )
    assert 0 == done.returncode, done.stdout + done.stderr
    return done.stdout


def test_each_trial_of_optuna_is_a_job(running_queue: Site, tmp_path: Path) -> None:
    """The trials share a journal, and each asks it what to try next."""
    needs("optuna")
    (text,) = (text for text in blocks("sweep-tools.md", "python") if "optuna" in text)
    model = "def train(lr):\n    return -abs(lr - 0.01)\n\n\n"
    (tmp_path / "tune.py").write_text(model + text)

    array = running_queue.client.jobs.submit(command=[PYTHON, "tune.py"], cwd=str(tmp_path), mem="1G", array="0-4%2")
    assert JobState.SUCCEEDED is running_queue.until_state(array.id, *ENDS, timeout_s=ENDS_S).state

    counts = [PYTHON, "-c", TRIALS]
    shown = subprocess.run(counts, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=ENDS_S).stdout
    assert f"{['COMPLETE'] * 5}\n" == shown


def test_ray_tune_runs_its_trials_in_one_job(running_queue: Site, tmp_path: Path) -> None:
    """Its processes end with the job, daemons included."""
    needs("ray")
    (text,) = (text for text in blocks("sweep-tools.md", "python") if "ray" in text)
    (tmp_path / "tune.py").write_text(f"def train(lr):\n    return -abs(lr - 0.01)\n\n\n{text}")

    shown = output_of(running_queue, tmp_path, "--env", f"HOME={tmp_path}", "tune.py")

    assert "best 0.01" in shown.splitlines()
    lines = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    assert [] == [line for line in lines if "raylet" in line and str(Path(PYTHON).parent) in line]


def test_wandb_records_the_job(running_queue: Site, tmp_path: Path) -> None:
    """Without the network, as on a closed cluster: the run is written beside the job."""
    needs("wandb")
    (text,) = (text for text in blocks("sweep-tools.md", "python") if "wandb" in text)
    (tmp_path / "train.py").write_text(text + '\nprint("name", run.name, run.group)\n')

    shown = output_of(running_queue, tmp_path, "--env", "WANDB_MODE=offline", "train.py")

    assert re.search(r"^name gpuqueue-\d+", shown, re.MULTILINE), shown
    assert any((tmp_path / "wandb").glob("offline-run-*/*.wandb"))


def test_lightning_starts_its_other_processes(running_queue: Site, tmp_path: Path) -> None:
    """They meet at the port of the job."""
    needs("lightning")
    (tmp_path / "train.py").write_text(DDP)

    shown = output_of(running_queue, tmp_path, "train.py")

    lines = sorted(line for line in shown.splitlines() if line.startswith("rank "))
    ports = {line.split()[-1] for line in lines}
    assert [f"rank {rank} of 2 port {port}" for rank in (0, 1) for port in ports] == lines


def test_accelerate_starts_two_processes(running_queue: Site, tmp_path: Path) -> None:
    """The command line is that of the page. It takes a free port of its own."""
    needs("accelerate")
    (tmp_path / "train.py").write_text(ACCELERATE)
    launch = "-m accelerate.commands.launch --multi_gpu --num_processes 2 --gpu_ids all --main_process_port 0 train.py"
    page = (ROOT / "docs" / "howto" / "launchers.md").read_text()
    assert launch.removeprefix("-m accelerate.commands.") in page

    shown = output_of(running_queue, tmp_path, "--", PYTHON, *launch.split())

    lines = sorted(line for line in shown.splitlines() if line.startswith("rank "))
    assert [f"rank {rank} of 2 sum 2.0" for rank in (0, 1)] == lines
