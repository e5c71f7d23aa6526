"""A private Slurm with two nodes on this machine: two slurmd, each under a name of its own."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from bounded import until
from private_slurm import PrivateSlurm, _free_port

#: The names of the nodes. Slurm calls both together by RANGE.
NODES, RANGE = ("node1", "node2"), "node[1-2]"


class TwoNodeSlurm(PrivateSlurm):
    """One controller and two nodes, with four fake GPUs each."""

    def __init__(self, place: Path, *, kill_wait_s: int = 30, slurmd_timeout_s: int = 300) -> None:
        super().__init__(place, kill_wait_s=kill_wait_s)
        path = place / "slurm.conf"
        host = re.search(r"^NodeName=(\S+) (.*)$", path.read_text(), re.MULTILINE)
        assert host is not None
        lines = [f"NodeName={name} NodeHostname={host[1]} Port={_free_port()} {host[2]}" for name in NODES]
        text = path.read_text().replace(host[0], "\n".join(lines)).replace(f"Nodes={host[1]} ", f"Nodes={RANGE} ")
        text = text.replace(f"{place}/spool", f"{place}/spool/%n").replace("slurmd.pid", "slurmd.%n.pid")
        path.write_text(f"{text}SlurmdTimeout={slurmd_timeout_s}\n")
        for name in NODES:
            (place / "spool" / name).mkdir()

    def start(self) -> None:
        """Start everything, and wait until both nodes are idle."""
        self.start_munge()
        self.start_controller()
        for name in NODES:
            self._programs[f"slurmd-{name}"] = self._programs["slurmd"]
            self._spawn(f"slurmd-{name}", "-D", "-N", name)
        self.until_idle()

    def until_idle(self) -> None:
        """Wait until both nodes are idle."""
        words = ("sinfo", "--Node", "--noheader", "--format=%T", "--partition=low")
        until(lambda: self.command(*words).split() == ["idle"] * len(NODES), what="the nodes", timeout_s=60)

    def kill_node(self, name: str) -> None:
        """End the daemon of a node with SIGKILL. Its jobs go on, and Slurm does not hear of them."""
        process = self._processes[f"slurmd-{name}"]
        process.kill()
        process.wait(timeout=30)

    def start_node(self, name: str) -> None:
        """Start the daemon of a node again, and wait until both nodes are idle."""
        self._spawn(f"slurmd-{name}", "-D", "-N", name)
        self.until_idle()


@contextlib.contextmanager
def running_two_nodes(place: Path, *, kill_wait_s: int = 30, slurmd_timeout_s: int = 300) -> Iterator[TwoNodeSlurm]:
    """Run Slurm with two nodes in the directory *place*, whose path must be short."""
    made = TwoNodeSlurm(place, kill_wait_s=kill_wait_s, slurmd_timeout_s=slurmd_timeout_s)
    try:
        made.start()
        yield made
    finally:
        made.stop()
