"""A user's program with Hydra and ``hydra/launcher=gpuqueue``, and a real queue."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from bounded import until
from site_of_one import Site
from terminal import Terminal

from gpuqueue.model.job import JobState

#: The app of a user: a module beside it, a class of the program itself, a configuration in a directory.
TRAIN = """
import logging
import os
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig

from beside import WORD

log = logging.getLogger(__name__)


class Model:
    def __init__(self, lr):
        self.lr = lr


@hydra.main(version_base=None, config_path="conf", config_name="config")
def train(cfg):
    job = HydraConfig.get().job
    print(WORD, Model(cfg.lr).lr, cfg.opt.name, job.num, job.id, os.environ["GIVEN"], os.environ["COPIED"])
    log.info("trained in %s", Path.cwd().name)
    Path("model.pt").touch()
    return 1 / Model(cfg.lr).lr


if __name__ == "__main__":
    train()
"""
CONFIG = """
lr: 1
opt: {name: sgd}
hydra:
  job: {chdir: true, env_set: {GIVEN: given}, env_copy: [COPIED]}
  sweep: {dir: out, subdir: "${hydra.job.num}"}
  callbacks: {ends: {_target_: beside.Ends}}
"""
BESIDE = """
import json
from hydra.experimental.callback import Callback

WORD = "trains"


class Ends(Callback):
    def on_job_end(self, config, job_return, **_):
        with open(config.hydra.runtime.output_dir + "/ended", "w") as file:
            json.dump([str(job_return.status), config.lr], file)

    def on_multirun_end(self, config, **_):
        open(config.hydra.sweep.dir + "/over", "w").close()
"""
WAITS = """
import time
from pathlib import Path

import hydra


@hydra.main(version_base=None)
def waits(cfg):
    Path("started").touch()
    while not Path("go").exists():
        time.sleep(0.05)


if __name__ == "__main__":
    waits()
"""


@pytest.fixture
def app(tmp_path: Path, running_queue: Site, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory of the programs, beside a running queue."""
    place = tmp_path / "app"
    (place / "conf").mkdir(parents=True)
    (place / "conf" / "config.yaml").write_text(CONFIG)
    for name, text in (("train", TRAIN), ("beside", BESIDE), ("waits", WAITS)):
        (place / f"{name}.py").write_text(text)
    monkeypatch.setenv("COPIED", "copied")
    assert running_queue.client.devices.are_known()
    return place


def words(*more: str, script: str = "train.py") -> list[str]:
    """Return the command line of a multirun."""
    return [sys.executable, script, "-m", "hydra/launcher=gpuqueue", "hydra.launcher.mem=1M", *more]


def array_of(printed: str) -> int:
    """Return the array that a multirun says it has submitted."""
    found = re.search(r"gpuqueue: array (\d+) of", printed)
    assert found is not None, printed
    return int(found[1])


def multirun(app: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Run the app of a user."""
    return subprocess.run(words(*more), cwd=app, capture_output=True, text=True, check=False, timeout=200)


def test_a_multirun_is_one_array_that_speaks_of_the_overrides(app: Path, running_queue: Site) -> None:
    """Its members are where Hydra says, with Hydra's configuration, log and callbacks, and have their values."""
    done = multirun(app, "lr=0.5,4", "opt.name=adam", "hydra.launcher.tag=[try]", "hydra.launcher.time=9m")

    assert 0 == done.returncode, done.stderr
    array = array_of(done.stdout)
    spec = running_queue.client.jobs.get(array).spec
    assert spec.array is not None
    assert ("train", ("try",), 540, ["lr=0.5,4", "opt_name=adam"]) == (
        spec.name,
        spec.tags,
        spec.time_limit_s,
        [str(axis) for axis in spec.array.axes],
    )
    columns = ("--sort", "lr", "--columns", "id,lr,opt_name,state")
    rows = running_queue.cli("history", "--array", str(array), *columns).stdout.splitlines()
    assert [[f"{array}_1", "4", "adam", "succeeded"], [f"{array}_0", "0.5", "adam", "succeeded"]] == [
        line.split() for line in rows[1:]
    ]
    assert f"trains 4 adam 1 {array}_1 given copied" in running_queue.cli("logs", f"{array}_1").stdout
    for number, lr in ((0, 0.5), (1, 4)):
        out = app / "out" / str(number)
        assert (out / "model.pt").exists()
        assert f"trained in {number}" in (out / "train.log").read_text()
        assert f"- lr={lr}\n- opt.name=adam\n" == (out / ".hydra" / "overrides.yaml").read_text()
        assert ["JobStatus.COMPLETED", lr] == json.loads((out / "ended").read_text())
    assert (app / "out" / "over").exists()


@pytest.mark.full
def test_a_failed_member_fails_the_multirun_with_its_own_traceback(app: Path, running_queue: Site) -> None:
    """The other members end. The job has failed in the queue, too, so that it can be retried."""
    done = multirun(app, "lr=0,2")

    assert 1 == done.returncode
    assert "Error executing job with overrides: ['lr=0']" in done.stderr
    assert "ZeroDivisionError" in done.stderr
    assert "return 1 / Model(cfg.lr).lr" in done.stderr
    members = running_queue.client.history.search(array=array_of(done.stdout), reverse=True)
    assert [JobState.FAILED, JobState.SUCCEEDED] == [each.job.state for each in members]
    assert ["JobStatus.FAILED", 0] == json.loads((app / "out" / "0" / "ended").read_text())


@pytest.mark.full
def test_each_batch_of_optuna_is_an_array(app: Path, running_queue: Site) -> None:
    """Its trials are no combinations, and the history has the value of each all the same."""
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper", reason="hydra-optuna-sweeper is not installed")
    batches = ("hydra/sweeper=optuna", "hydra.sweeper.n_trials=6", "hydra.sweeper.n_jobs=3")

    done = multirun(app, *batches, "lr=interval(0.1,1)", "opt.name=choice(adam,sgd)")

    assert 0 == done.returncode, done.stderr
    arrays = [running_queue.client.jobs.get(int(each)) for each in re.findall(r"array (\d+) of 3 jobs", done.stdout)]
    assert [["lr", "opt_name"]] * 2 == [[axis.name for axis in each.spec.array.axes] for each in arrays]
    for each in arrays:
        records = running_queue.client.history.search(array=each.id)
        values = running_queue.client.history.params(records)
        for job in (record.job for record in records):
            own = values[job.id]
            assert f"trains {own['lr']} {own['opt_name']} " in running_queue.cli("logs", str(job.member)).stdout
    assert (app / "out" / "optimization_results.yaml").exists()


@pytest.mark.full
@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("hydra.launcher.memm=6G", "Key 'memm' is not in struct"),
        ("+hydra.launcher.memm=6G", "gpuqueue: memm is no option of an executor: there are "),
        ("hydra.launcher.time=soon", "gpuqueue: 'soon' is "),
        ("hydra.launcher.retries=many", "gpuqueue: retries must be a whole number"),
    ],
)
def test_a_wrong_option_is_one_line(app: Path, running_queue: Site, override: str, line: str) -> None:
    """Hydra knows the names, and the queue the values. Nothing is submitted."""
    done = multirun(app, "lr=1,2", override)

    assert (1, 1) == (done.returncode, done.stderr.count(line)), done.stderr
    assert "Traceback" not in done.stderr
    assert [] == running_queue.client.jobs.list()


@pytest.mark.full
def test_ctrl_c_in_a_script_cancels_the_array(app: Path, running_queue: Site) -> None:
    """Nobody can be asked there, and nobody is left who would read the results."""
    process = subprocess.Popen(words("+a=1,2", script="waits.py"), cwd=app, stdin=subprocess.DEVNULL)
    until((app / "started").exists, what="a member")
    (array, *_) = [each.id for each in running_queue.client.jobs.list() if each.member is None]

    process.send_signal(signal.SIGINT)

    assert 130 == process.wait(timeout=60)
    assert JobState.CANCELLED is running_queue.until_state(array, JobState.CANCELLED).state


@pytest.mark.full
@pytest.mark.parametrize(("answer", "code"), [("d", 7), ("g", 0)])
def test_ctrl_c_at_a_terminal_asks(app: Path, running_queue: Site, answer: str, code: int) -> None:
    """As for gpuqueue run: the user can leave the array running, or go on waiting."""
    with Terminal(
        words("+a=1,2", script="waits.py"), {**running_queue.environ}, directory=app, columns=120
    ) as terminal:
        array = array_of(terminal.shows("of 2 jobs"))
        terminal.press("\x03")
        terminal.shows(f"job {array}: [c]ancel it, [d]etach and let it run, or [g]o on?")
        terminal.press(f"{answer}\n")
        if answer == "d":
            terminal.shows(f"job {array} goes on: gpuqueue wait {array}")
        (app / "go").touch()
        assert code == terminal.process.wait(timeout=60)
    assert JobState.SUCCEEDED is running_queue.until_state(array, JobState.SUCCEEDED, JobState.FAILED).state


@pytest.mark.full
def test_a_held_array_is_reported(app: Path, running_queue: Site) -> None:
    """The multirun would wait in silence, where the user wants the rest held after too many failures."""
    options = ("hydra.launcher.max_failures=1", "hydra.launcher.at_once=1")
    command = words("lr=0,1,2", *options)
    with subprocess.Popen(command, cwd=app, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        array = array_of(process.stdout.readline())
        held = f"job {array}_1 is held: gpuqueue why {array}_1"
        assert any(held in line for line in process.stdout), "nothing was said"

        running_queue.cli("release", str(array))

        process.stdout.read()
        assert 1 == process.wait(timeout=60)
    states = [each.job.state for each in running_queue.client.history.search(array=array)]
    assert 2 == states.count(JobState.SUCCEEDED)
