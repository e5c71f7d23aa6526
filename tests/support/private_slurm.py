"""Slurm from Debian with nodes of fake GPUs on this machine: private munged, slurmctld, slurmd and slurmdbd."""

from __future__ import annotations

import contextlib
import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from bounded import until

#: The directories of daemons, which a user's PATH may lack.
PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol", "sinfo")
GPUS = 4
#: It needs neither systemd nor control groups nor a database.
CONFIG = """\
ClusterName=private
SlurmctldHost={node}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={place}/munge.socket
SlurmctldPort={controller_port}
SlurmdPort={node_port}
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait={kill_wait_s}
MinJobAge=300
GresTypes=gpu
NodeName={node} NodeAddr=127.0.0.1 CPUs=8 Gres=gpu:{gpus} State=UNKNOWN
PartitionName=low Nodes={node} Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=high Nodes={node} MaxTime=INFINITE State=UP PriorityTier=9
"""


class PrivateSlurm:
    """One controller and one node with four fake GPUs. ``environ`` is what its commands need."""

    def __init__(self, place: Path, *, kill_wait_s: int = 30) -> None:
        found = {each: shutil.which(each, path=PATH) for each in PROGRAMS}
        missing = [each for each, path in found.items() if path is None]
        if missing:
            pytest.skip(f"Slurm is not installed here: {', '.join(missing)}")
        self._programs = {each: str(path) for each, path in found.items()}
        self.place = place
        self.environ = {**os.environ, "PATH": PATH, "SLURM_CONF": str(place / "slurm.conf")}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        for each in ("state", "spool"):
            (place / each).mkdir()
        for number in range(GPUS):
            (place / f"gpu{number}").touch()
        (place / "slurm.conf").write_text(
            CONFIG.format(
                node=socket.gethostname().partition(".")[0],
                user=getpass.getuser(),
                place=place,
                controller_port=_free_port(),
                node_port=_free_port(),
                gpus=GPUS,
                kill_wait_s=kill_wait_s,
            )
        )
        (place / "gres.conf").write_text("Name=gpu Flags=nvidia_gpu_env File=/dev/tty[0-3]\n")

    def start(self) -> None:
        """Start everything, and wait until the node is idle."""
        self.start_munge()
        self.start_controller()
        self._spawn("slurmd", "-D")
        until(lambda: self.command("sinfo", "--noheader", "--format=%T") == "idle", what="the node", timeout_s=60)

    def start_munge(self) -> None:
        """Start munged, if it does not run."""
        if "munged" in self._processes:
            return
        key, place = self.place / "munge.key", self.place
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        files = {"key-file": key, "socket": place / "munge.socket", "pid-file": place / "munged.pid"}
        files |= {"log-file": place / "munge.log", "seed-file": place / "munge.seed"}
        words = [f"--{option}={path}" for option, path in files.items()]
        self._spawn("munged", "--foreground", "--force", *words)
        until((place / "munge.socket").exists, what="munged")

    def start_controller(self) -> None:
        """Start slurmctld, and wait until it answers."""
        self._spawn("slurmctld", "-D")
        until(lambda: self.command("sinfo", "--noheader", "--format=%T"), what="slurmctld", timeout_s=60)

    def kill_controller(self) -> None:
        """End slurmctld with SIGKILL."""
        process = self._processes["slurmctld"]
        process.kill()
        process.wait(timeout=30)

    def command(self, *words: str, stdin: str = "") -> str:
        """Return what a command of Slurm prints; empty if it fails."""
        done = self.run(*words, stdin=stdin)
        return done.stdout.strip() if done.returncode == 0 else ""

    def run(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command of Slurm."""
        return subprocess.run(
            [self._programs.get(words[0], words[0]), *words[1:]],
            env=self.environ,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            cwd=self.place,
        )

    def listed(self, *more: str) -> list[str]:
        """Return the states of the jobs in the queue."""
        return self.command("squeue", "--noheader", "--format=%T", *more).split()

    def log(self, name: str) -> str:
        """Return what a daemon has written."""
        return (self.place / f"{name}.out").read_text(errors="replace")

    def stop(self) -> None:
        """Cancel all jobs, and end everything."""
        if self._processes.get("slurmctld") is not None and self._processes["slurmctld"].poll() is None:
            self.command("scancel", "--user", getpass.getuser())
            with contextlib.suppress(AssertionError):
                until(lambda: not self.listed(), what="an empty queue", timeout_s=40)
        for process in reversed(self._processes.values()):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(timeout=20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait(timeout=20)

    def _spawn(self, name: str, *words: str) -> None:
        with (self.place / f"{name}.out").open("ab") as out:
            self._processes[name] = subprocess.Popen(
                [self._programs[name], *words], env=self.environ, stdout=out, stderr=out, start_new_session=True
            )


@contextlib.contextmanager
def running_slurm(place: Path, *, kill_wait_s: int = 30) -> Iterator[PrivateSlurm]:
    """Run Slurm in the directory *place*, whose path must be short."""
    made = PrivateSlurm(place, kill_wait_s=kill_wait_s)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
