"""Slurm from Debian, with one node of four processors on this machine: private munged, slurmctld and slurmd."""

from __future__ import annotations

import getpass
import secrets
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.peers.crew import running
from benchmarks.peers.peer import SLOTS, NotInstalled, Peer, private_place
from benchmarks.peers.reach import free_port

#: The directories of daemons, which a user's PATH may lack.
SYSTEM = ("/usr/sbin", "/sbin")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scancel", "sinfo")
#: The configuration needs neither systemd nor control groups. The node is declared to have as many processors as the
#: other peers have slots.
CONFIG = """\
ClusterName=peers
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
{scheduler}
NodeName={node} NodeAddr=127.0.0.1 CPUs={slots} State=UNKNOWN
PartitionName=peers Nodes={node} Default=YES MaxTime=INFINITE State=UP
"""


@contextmanager
def slurm(name: str = "slurm", batch_delay_s: int | None = None) -> Iterator[Peer]:
    """Run one controller and one node.

    *batch_delay_s* is how long jobs are gathered before one is considered, in seconds; 3 by default.
    """
    with ExitStack() as stack:
        place, environ = stack.enter_context(private_place(path=SYSTEM))
        found = {each: shutil.which(each, path=environ["PATH"]) for each in PROGRAMS}
        if None in found.values():
            raise NotInstalled("slurm")
        programs = {each: str(path) for each, path in found.items()}
        environ["SLURM_CONF"] = _configured(Path(place), batch_delay_s)
        munged = stack.enter_context(running([_munged(programs["munged"], Path(place))], environ))
        munged.await_up((Path(place) / "munge.socket").exists, "munged")
        controller = stack.enter_context(running([[programs["slurmctld"], "-D"]], environ))
        controller.await_up(lambda: _nodes(programs["sinfo"], environ), "the controller of Slurm")
        node = stack.enter_context(running([[programs["slurmd"], "-D"]], environ))
        node.await_up(lambda: _nodes(programs["sinfo"], environ) == "idle", "the node of Slurm")
        yield Peer(
            name=name,
            environ=environ,
            command=[programs["sbatch"], "--output=/dev/null", "--wrap", "/bin/true"],
            mains=node.mains,
            restart=node.start,
        )


def _configured(place: Path, batch_delay_s: int | None) -> str:
    """Write the configuration; return its path."""
    for each in ("state", "spool"):
        (place / each).mkdir()
    text = CONFIG.format(
        node=socket.gethostname().partition(".")[0],
        user=getpass.getuser(),
        place=place,
        controller_port=free_port(),
        node_port=free_port(),
        slots=SLOTS,
        scheduler="" if batch_delay_s is None else f"SchedulerParameters=batch_sched_delay={batch_delay_s}",
    )
    path = place / "slurm.conf"
    path.write_text(text, encoding="utf-8")
    return str(path)


def _munged(program: str, place: Path) -> list[str]:
    """Return the command of a munged with its own key, socket and files."""
    key = place / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    files = {"key-file": key, "socket": place / "munge.socket", "pid-file": place / "munged.pid"}
    files |= {"log-file": place / "munge.log", "seed-file": place / "munge.seed"}
    return [program, "--foreground", "--force", *(f"--{option}={path}" for option, path in files.items())]


def _nodes(sinfo: str, environ: Mapping[str, str]) -> str:
    """Return the state of the node; empty if the controller does not answer."""
    asked = subprocess.run(
        [sinfo, "--noheader", "--format=%T"], env=dict(environ), capture_output=True, text=True, timeout=30, check=False
    )
    return asked.stdout.strip()
