"""What each run gets of its host: a port of its own, open files, and its place when host memory runs out."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from bounded import until
from one_shim import RUN_TOKEN

from gpuqueue.model.run import EndingKind
from workers.run.environment import TOKEN
from workers.shim.master_port import candidates
from workers.shim.tree import MAX_OPEN_FILES

#: Listens as the first rank of a training does, prints where, and goes on until its directory has a file ``go``.
FIRST_RANK = """
import os, pathlib, socket, time
listener = socket.create_server((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
print(*listener.getsockname(), os.environ["PET_MASTER_PORT"], flush=True)
while not pathlib.Path("go").exists(): time.sleep(0.02)
"""
#: Two ranks meet, and go on until their directory has a file ``go``.
RANKS = """
import pathlib, time, torch
from torch import distributed
distributed.init_process_group("gloo")
total = torch.ones(1)
distributed.all_reduce(total)
print(f"sum {total.item()}", flush=True)
while not pathlib.Path("go").exists(): time.sleep(0.02)
"""
#: Touches as much memory as its argument says, in bytes.
EATER = "import sys; held = b'x' * int(sys.argv[1])"
MIB = 2**20


def test_each_run_listens_on_a_port_of_its_own(shims: Any, tmp_path: Path) -> None:
    """Regression: the second of two trainings on one host found the port of the first in use."""
    runs = [shims(sys.executable, "-c", FIRST_RANK, cwd=str(tmp_path)) for _ in range(3)]
    until(lambda: all(run.log() for run in runs), what="the ranks")
    (tmp_path / "go").touch()

    assert [0, 0, 0] == [run.ended().ending.exit_code for run in runs]
    lines = [run.log().split() for run in runs]
    assert {"127.0.0.1"} == {address for address, _, _ in lines}
    ports = {int(port) for _, port, _ in lines}
    assert 3 == len(ports)
    assert ports <= set(candidates())
    assert [port for _, port, _ in lines] == [port for _, _, port in lines]


@pytest.mark.full
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_two_trainings_by_torchrun_run_at_the_same_time(shims: Any, tmp_path: Path) -> None:
    """Nobody names a port: torchrun alone takes 29500 for each of them, and the second one fails."""
    (tmp_path / "ranks.py").write_text(RANKS)
    env = {"PATH": os.environ["PATH"], TOKEN: RUN_TOKEN, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    words = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "ranks.py")
    runs = [shims(*words, cwd=str(tmp_path), env=env) for _ in range(2)]
    try:
        until(lambda: [2, 2] == [run.log().count("sum 2.0") for run in runs], timeout_s=120, what="four ranks")
    finally:
        (tmp_path / "go").touch()

    assert [0, 0] == [run.ended().ending.exit_code for run in runs], [run.log() for run in runs]


def test_a_run_takes_the_port_that_its_submitter_has_set(shims: Any) -> None:
    """What is set stays as it is."""
    env = {"PATH": os.environ["PATH"], TOKEN: RUN_TOKEN, "MASTER_ADDR": "node1", "MASTER_PORT": "29501"}
    run = shims("sh", "-c", "echo $MASTER_ADDR $MASTER_PORT $PET_MASTER_PORT", env=env)

    assert (0, "node1 29501\n") == (run.ended().ending.exit_code, run.log())


def test_a_job_may_open_as_many_files_as_its_hard_limit_permits(shims: Any) -> None:
    """Data loaders with many workers need more than the usual soft limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))  # the process that forks shims has it from here
    try:
        run = shims("sh", "-c", "ulimit -Sn; ulimit -Hn")
        assert 0 == run.ended().ending.exit_code
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert [min(hard, MAX_OPEN_FILES), hard] == [int(line) for line in run.log().split()]


def test_the_kernel_ends_a_job_before_its_shim(shims: Any) -> None:
    """When host memory runs out, a job is killed rather than what looks after it."""
    own = Path("/proc/self/oom_score_adj").read_text()
    run = shims("sh", "-c", "cat /proc/self/oom_score_adj; sleep 600", oom_score_adj=300)
    until(run.log, what="the job")

    ours = Path(f"/proc/{run.process.pid}/oom_score_adj").read_text()
    run.directory.ask_end(EndingKind.CANCELLED)
    run.ended()
    assert own == ours
    assert int(run.log()) >= 300  # an account may not lower what it has inherited


@pytest.fixture
def group() -> Iterator[Path]:
    """Return a control group whose processes may have 64 MiB of memory, of either version."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    own = {name: line.split(":", 2)[2].strip("/") for line in lines for name in line.split(":")[1].split(",")}
    top = Path("/sys/fs/cgroup", *(("memory", own["memory"]) if "memory" in own else (own.get("", ""),)))
    made = top / f"gpuqueue-test-{os.getpid()}"
    try:
        made.mkdir()
    except OSError:
        pytest.skip("this account can make no control groups here")
    limit = next((made / name for name in ("memory.limit_in_bytes", "memory.max") if (made / name).exists()), None)
    try:
        if limit is None:
            pytest.skip("the control groups of this machine limit no memory")
        limit.write_text(str(64 * MIB))
        for swap in ("memory.swap.max", "memory.swappiness"):
            if (made / swap).exists():
                (made / swap).write_text("0")
        yield made
    finally:
        made.rmdir()


@pytest.mark.parametrize(
    ("words", "ended"),
    [('exec "$@"', "killed by SIGKILL"), ('"$@"; exit $?', "exit 137")],
    ids=["by itself", "in a shell"],
)
def test_a_run_that_the_kernel_has_killed_says_so(shims: Any, group: Path, words: str, ended: str) -> None:
    """Regression: the ending was "killed by SIGKILL", as if somebody had typed kill -9."""
    enter = f"echo $$ > {group}/cgroup.procs; {words}"
    end = shims("sh", "-c", enter, "sh", sys.executable, "-c", EATER, str(256 * MIB)).ended()

    assert str(end.ending).startswith(f"{ended}: the "), end
    assert "memory" in end.ending.detail
    assert end.ending.detail.endswith(" available)")
