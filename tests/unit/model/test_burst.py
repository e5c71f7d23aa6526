"""The tables ``[burst.ENGINE]`` of the settings file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpuqueue.errors import BadRequest
from gpuqueue.model.burst import PilotSettings, parse_burst
from gpuqueue.settings.settings import Settings

TABLE = """
[burst.slurm]
wrapper = "ssh -o BatchMode=yes login"
options = "--partition=gpu '--constraint=a100&nvlink'"
service_url = "https://gpu.example.org:8443"
idle = "5m"
jobs_of_all = true
"""


def test_a_table_of_the_file_is_the_json_of_the_environment(tmp_path: Path) -> None:
    """Words are split as a shell does. What is left out has its default."""
    path = tmp_path / "config.toml"
    path.write_text(TABLE)
    from_file = Settings.load({"GPUQUEUE_CONFIG": str(path), "GPUQUEUE_STATE_DIR": "/s"}).burst
    expected = PilotSettings(
        wrapper=("ssh", "-o", "BatchMode=yes", "login"),
        options=("--partition=gpu", "--constraint=a100&nvlink"),
        service_url="https://gpu.example.org:8443",
        idle_s=300.0,
        jobs_of_all=True,
    )
    assert {"slurm": expected} == from_file
    text = '{"slurm": {"idle": "5m", "pool": "x"}}'
    environ = {"GPUQUEUE_CONFIG": os.devnull, "GPUQUEUE_STATE_DIR": "/s", "GPUQUEUE_BURST": text}
    assert {"slurm": PilotSettings(idle_s=300.0, pool="x")} == Settings.load(environ).burst
    assert {} == Settings.load({"GPUQUEUE_CONFIG": os.devnull, "GPUQUEUE_STATE_DIR": "/s"}).burst


def test_fields_of_a_pod_are_written_as_kubernetes_has_them(tmp_path: Path) -> None:
    """Tables, lists and numbers of the file keep their form."""
    path = tmp_path / "config.toml"
    path.write_text(
        "[burst.kubernetes]\nimage = 'gpuqueue:1'\nqueue = 'team-a'\nidle = '5m'\n"
        "[burst.kubernetes.pod]\nhostPID = true\ntolerations = [{key = 'nvidia.com/gpu', operator = 'Exists'}]\n"
        "[burst.kubernetes.container.resources.limits]\ncpu = 8\n"
    )
    found = Settings.load({"GPUQUEUE_CONFIG": str(path), "GPUQUEUE_STATE_DIR": "/s"}).burst["kubernetes"]
    assert found == PilotSettings(
        image="gpuqueue:1",
        queue="team-a",
        idle_s=300.0,
        pod={"hostPID": True, "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]},
        container={"resources": {"limits": {"cpu": 8}}},
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[burst.pbs]\n", "'pbs' is no engine: there is slurm, kubernetes"),
        ("[burst.slurm]\npartition = 'gpu'\n", "'partition' is no setting of slurm: there are wrapper, options"),
        ("[burst.slurm]\nidle = 'soon'\n", "slurm.idle: "),
        ("[burst.slurm]\ndevices = 'foo'\n", "slurm.devices: 'foo' names no devices: write gpu, auto"),
        ("[burst.slurm]\ndevices = 'slurm'\n", "slurm.devices: 'slurm' names no devices"),
        ("[burst.slurm]\ndevices = 'sim:2xmuch'\n", "slurm.devices: 'sim:2xmuch' names no devices"),
        ("[burst.slurm]\nlogs = '/logs/%j'\n", "slurm.logs: '/logs/%j' is no absolute path"),
        ('[burst.slurm]\noptions = "--x=\'"\n', "slurm.options: .*No closing quotation"),
        ('[burst.slurm]\noptions = "--job-name=foo"\n', "slurm.options: gpuqueue sets --job-name itself"),
        ('[burst.slurm]\noptions = "--arr=0-1"\n', "slurm.options: gpuqueue sets --arr itself"),
        ('[burst.slurm]\noptions = "-Jfoo"\n', "slurm.options: gpuqueue sets -J itself"),
        ("[burst.slurm]\nprogram = 'gpuqueue'\n", "slurm.program: 'gpuqueue' is no absolute path"),
        ('[burst.slurm]\nprepare = "a\\nb"\n', "slurm.prepare: .* is no single line"),
        ("[burst.slurm]\njobs_of_all = 'yes'\n", "slurm.jobs_of_all: 'yes' is neither true nor false"),
        ("[burst.slurm]\nimage = 'a'\n", "'image' is no setting of slurm"),
        ("[burst.kubernetes]\noptions = 'a'\n", "'options' is no setting of kubernetes: there are image, "),
        ("[burst.kubernetes]\nnamespace = 'A'\n", "kubernetes.namespace: 'A' is no namespace"),
        ("[burst.kubernetes]\nqueue = 'a b'\n", "kubernetes.queue: 'a b' is no queue of Kueue"),
        ("[burst.kubernetes]\npod = 'x'\n", "kubernetes.pod: 'x' is no table"),
        ("[burst.kubernetes.pod]\nrestartPolicy = 'Always'\n", "kubernetes.pod: gpuqueue sets restartPolicy itself"),
        ("[burst.kubernetes.container]\nargs = []\n", "kubernetes.container: gpuqueue sets args itself"),
        ("burst = 'slurm'\n", r"has no table of an engine: write \[burst.slurm\]"),
        ("burst = '[1'\n", "has no table of an engine"),
    ],
)
def test_a_table_that_cannot_be_used_says_why(text: str, said: str, tmp_path: Path) -> None:
    """In one line, with the setting."""
    path = tmp_path / "config.toml"
    path.write_text(text)
    with pytest.raises(BadRequest, match=f"setting burst .*{said}"):
        Settings.load({"GPUQUEUE_CONFIG": str(path), "GPUQUEUE_STATE_DIR": "/s"})


@pytest.mark.parametrize(
    "devices", ["gpu", "auto", "gpu,cpu", "gpu:0,2", "cpu", "sim:4x24G", "sim:8G", "sim:1x8G+2x16G"]
)
def test_what_a_pilot_serves_is_read_as_up_does(devices: str) -> None:
    """A word that names no devices was an error of the node alone, after the wait in the queue of the cluster."""
    assert devices == parse_burst(json.dumps({"slurm": {"devices": devices}}))["slurm"].devices
