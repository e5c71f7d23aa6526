"""The whole way as the how-to pages tell it: from a laptop that reaches one port, through the lab, to a real Slurm.

The laptop is a network namespace with a home of its own. It has the address of the service, a token and a certificate.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from bounded import until
from forked_command import BIN
from lab import certificate
from link import Namespace
from private_slurm import _free_port as free_port
from two_node_slurm import TwoNodeSlurm, running_two_nodes

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

GPUQUEUE = str(BIN / "gpuqueue")
#: The settings file of the lab, as slurm-pilots.md and pilots-by-rule.md have it, with devices that are simulated.
SETTINGS = """\
host = "lab"

[burst.slurm]
service_url = "{url}"
service_ca = "{ca}"
program = "{program}"
directory = "{place}/pilots"
options = "--chdir={place}/slurm"
devices = "sim:1x8G"
when_waiting = "3s"
hours = 1
idle = "30s"
"""
#: The project on the laptop: its module is the code "as it was" at the submit.
TRAIN = "import time, model\nfor step in range(30):\n    print(model.NAME, step, flush=True)\n    time.sleep(0.2)\n"


class Site:
    """A lab with one device, which is taken, and a laptop."""

    def __init__(self, place: Path, slurm: TwoNodeSlurm, laptop: Namespace, stack: ExitStack) -> None:
        self.place, self.slurm, self._laptop = place, slurm, laptop
        self.url = f"https://{laptop.address}:{free_port()}"
        ca, key = certificate(place, laptop.address)
        for each in ("pilots", "home", "laptop/project"):
            (place / each).mkdir(parents=True)
        settings = SETTINGS.format(url=self.url, ca=ca, program=GPUQUEUE, place=place)
        (place / "config.toml").write_text(settings)
        plain = {"PATH": f"{BIN}{os.pathsep}{slurm.environ['PATH']}", "LANG": "C.UTF-8"}
        self._lab = {
            **plain,
            "HOME": str(place / "home"),
            "SLURM_CONF": slurm.environ["SLURM_CONF"],
            "GPUQUEUE_CONFIG": str(place / "config.toml"),
            "GPUQUEUE_STATE_DIR": str(place / "home/state"),
        }
        self.lab("up", "--devices", "sim:1x8G,slurm")
        stack.callback(self.lab, "down", "--cancel-jobs")
        with (place / "service.log").open("wb") as log:
            words = ["serve", "--socket", f"{place}/api", "--listen", self.url.removeprefix("https://")]
            service = subprocess.Popen(
                [GPUQUEUE, *words, "--tls-cert", ca, "--tls-key", key], env=self._lab, stderr=log, cwd=slurm.place
            )
        stack.callback(service.wait)
        stack.callback(service.terminate)
        until((place / "api").exists, what="the service")
        (place / "laptop/token").write_text(self.lab("token", "create", "--name", "laptop"))
        (place / "laptop/token").chmod(0o600)
        self._env = {
            **plain,
            "HOME": str(place / "laptop"),
            "SSL_CERT_FILE": ca,
            "GPUQUEUE_URL": self.url,
            "GPUQUEUE_TOKEN_FILE": str(place / "laptop/token"),
        }

    def lab(self, *words: str) -> str:
        """Run a command in the lab."""
        return _output([GPUQUEUE, *words], self._lab, self.place / "home")

    def laptop(self, *words: str) -> str:
        """Run a command on the laptop, in its project."""
        return _output(self._laptop.command(GPUQUEUE, *words), self._env, self.place / "laptop/project")

    def record(self, job: str) -> dict[str, Any]:
        """Return what ``show`` says of a job on the laptop."""
        found: dict[str, Any] = json.loads(self.laptop("show", job, "--json"))
        return found


def _output(words: list[str], environ: dict[str, str], cwd: Path) -> str:
    done = subprocess.run(words, env=environ, cwd=cwd, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """Return the lab and the laptop, and end them."""
    place = Path(tempfile.mkdtemp(prefix="gq-lap-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, place, ignore_errors=True)
        try:
            laptop = Namespace(f"gq{secrets.token_hex(3)}", 1 + secrets.randbelow(250))
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no network namespace can be made here: {error}")
        stack.callback(laptop.close)
        (place / "slurm").mkdir()
        slurm = stack.enter_context(running_two_nodes(place / "slurm"))
        yield Site(place, slurm, laptop, stack)


def test_a_job_of_the_laptop_that_waits_runs_on_a_pilot(site: Site) -> None:
    """With the code as it was; its log is followed, its peak and history are there, and nothing is left in Slurm."""
    blocker = site.lab("submit", "--mem", "7G", "--time", "10m", "--no-requeue", "--", "sleep", "600").strip()
    until(lambda: "running" in site.lab("show", blocker), what="a device that is taken")
    project = site.place / "laptop/project"
    (project / "train.py").write_text(TRAIN)
    (project / "model.py").write_text("NAME = 'as it was'\n")
    job = site.laptop("submit", "train.py", "--mem", "6G", "--time", "10m").strip()
    (project / "model.py").write_text("NAME = 'changed later'\n")

    followed = site.laptop("logs", "-f", job)
    assert [f"as it was {step}" for step in range(30)] == re.findall(r"as it was \d+", followed)
    assert "changed later" not in followed
    record = site.record(job)
    run = record["runs"][-1]
    assert ("succeeded", 0) == (record["job"]["state"], run["ending"]["exit_code"])
    assert run["host"].startswith("slurm-")
    assert run["devices"][0]["peak"]["bytes"]
    assert re.search(rf"^ *{job} .*{run['host']}", site.laptop("history"), re.MULTILINE)

    until(lambda: not site.slurm.listed(), what="an empty Slurm: the pilot gives back", timeout_s=200)
    until(lambda: run["host"] not in site.laptop("gpus"), what="devices withdrawn")
    until(lambda: "no pilots" in site.lab("burst", "list"), what="no pilots")
    assert [] == [*(site.place / "pilots").iterdir()]
    assert "revoked" in next(line for line in site.lab("token", "list", "--all").splitlines() if run["host"] in line)
    site.lab("cancel", blocker)


def test_a_job_of_several_nodes_is_in_the_history_of_the_laptop(site: Site) -> None:
    """Slurm runs it as it is, once on each node."""
    words = ("--on", "slurm", "--nodes", "2", "--gpus", "4", "--time", "5m")
    job = site.laptop("submit", *words, "--", "sh", "-c", 'echo "node $SLURM_NODEID of $SLURM_JOB_NUM_NODES"').strip()
    followed = site.laptop("logs", "-f", job)

    assert ["0 of 2", "1 of 2"] == sorted(re.findall(r"node (\d of \d)", followed))
    site.laptop("wait", job)
    assert re.search(rf"^ *{job} .*exit 0", site.laptop("history"), re.MULTILINE)
    assert "Slurm ran it as job" in site.laptop("show", job)
    assert [] == site.slurm.listed()
