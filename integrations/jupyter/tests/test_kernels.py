"""Real kernels of ipykernel, started by the real jupyter_client as jobs of a real queue."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bounded import until
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.ioloop import AsyncIOLoopKernelManager
from jupyter_client.manager import KernelManager
from site_of_one import Site

from gpuqueue.model.job import Job, JobState

READY_S = 90
Managed = Callable[..., tuple[KernelManager, BlockingKernelClient]]


@pytest.fixture
def kernels(tmp_path: Path, running_queue: Site, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return a function that adds a kernel with a stanza, and returns its name."""
    assert running_queue.client.devices.are_known()
    for name, place in (("JUPYTER_PATH", "share"), ("JUPYTER_RUNTIME_DIR", "runtime"), ("IPYTHONDIR", "ipython")):
        monkeypatch.setenv(name, str(tmp_path / place))

    def add(name: str = "gpu", *, mode: str = "signal", argv: list[str] | None = None, **config: object) -> str:
        words = argv or [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        stanza = {"provisioner_name": "gpuqueue-provisioner", "config": config}
        spec = {"argv": words, "display_name": name, "language": "python", "interrupt_mode": mode}
        directory = tmp_path / "share" / "kernels" / name
        directory.mkdir(parents=True)
        (directory / "kernel.json").write_text(json.dumps({**spec, "metadata": {"kernel_provisioner": stanza}}))
        return name

    return add


@pytest.fixture
def start(kernels: Callable[..., str]) -> Iterator[Managed]:
    """Return a function that starts a kernel and connects to it. They are shut down at the end."""
    begun: list[tuple[KernelManager, BlockingKernelClient]] = []

    def started(*, transport: str = "tcp", **stanza: Any) -> tuple[KernelManager, BlockingKernelClient]:
        name = kernels(f"gpu{len(begun)}", **{"mem": "1G", **stanza})
        manager = KernelManager(kernel_name=name, transport=transport)
        manager.start_kernel()
        client = manager.client()
        client.start_channels()
        client.wait_for_ready(timeout=READY_S)
        begun.append((manager, client))
        return manager, client

    yield started
    for manager, client in begun:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def printed(client: BlockingKernelClient, code: str) -> str:
    """Run *code*, and return what it prints, or the name of its error."""
    found: list[str] = []

    def take(message: dict[str, Any]) -> None:
        content = message["content"]
        if message["msg_type"] in {"stream", "error"}:
            found.append(content.get("text", content.get("ename", "")))

    client.execute_interactive(code, timeout=READY_S, output_hook=take)
    return "".join(found).strip()


def job_of(queue: Site) -> Job:
    """Return the newest job, which has not ended."""
    return max(queue.client.jobs.list(), key=lambda job: job.id)


@pytest.mark.parametrize("transport", ["tcp", "ipc"])
def test_a_kernel_is_a_job_with_its_memory_and_ends_with_it(
    start: Managed, running_queue: Site, tmp_path: Path, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the device, the directory and the environment; after the end, nothing is left."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OF_JUPYTER", "yes")
    manager, client = start(transport=transport, mem="2G", time_limit="1h", tags=["mine"])
    words = "'GPUQUEUE_JOB_ID', 'CUDA_VISIBLE_DEVICES', 'OF_JUPYTER'"
    job = job_of(running_queue)

    number, device, given, where = printed(
        client, f"import os; print(*(os.environ[each] for each in ({words})), os.getcwd(), sep='|')"
    ).split("|")

    assert (str(job.id), "yes", str(tmp_path)) == (number, given, where)
    assert [device] == list(job.devices)
    assert (2 * 2**30, 3600, ("mine",), JobState.RUNNING) == (
        *(job.spec.mem_bytes, job.spec.time_limit_s),
        *(job.tags, job.state),
    )
    file = Path(manager.connection_file)
    assert file.exists()
    manager.shutdown_kernel()
    assert running_queue.until_state(job.id, JobState.SUCCEEDED).state.is_end
    assert not manager.is_alive()
    assert [False, False] == [each.exists() for each in (file, Path(f"{file}.pid"))]


@pytest.mark.parametrize("mode", ["signal", "message"])
def test_an_interrupt_stops_the_cell_and_not_the_kernel(start: Managed, mode: str) -> None:
    manager, client = start(mode=mode)
    printed(client, "x = 5")
    client.execute("import time; print('begun', flush=True)\nwhile True: time.sleep(0.05)")
    until(lambda: "begun" in str(client.get_iopub_msg(timeout=READY_S)["content"]), what="the cell")
    manager.interrupt_kernel()
    reply = client.get_shell_msg(timeout=READY_S)["content"]
    assert "KeyboardInterrupt" == reply["ename"]

    # A kernel drops the requests that arrive right after an error.
    until(lambda: "5" == printed(client, "print(x)"), what="the kernel to go on")
    assert manager.is_alive()


@pytest.mark.parametrize("now", [False, True])
def test_a_restart_is_a_new_job_at_the_same_ports(start: Managed, running_queue: Site, *, now: bool) -> None:
    manager, client = start()
    first, ports = job_of(running_queue), manager.ports
    printed(client, "x = 5")

    manager.restart_kernel(now=now)
    client.wait_for_ready(timeout=READY_S)

    assert "NameError" == printed(client, "print(x)")
    assert running_queue.until_state(first.id, JobState.SUCCEEDED, JobState.CANCELLED).state.is_end
    assert (first.id + 1, ports) == (job_of(running_queue).id, manager.ports)


def test_a_kernel_that_dies_is_dead_and_starts_again(start: Managed) -> None:
    manager, client = start()
    pid = int(printed(client, "import os; print(os.getpid())"))
    assert int(Path(f"{manager.connection_file}.pid").read_text()) == pid

    os.kill(pid, signal.SIGKILL)
    until(lambda: not manager.is_alive(), what="the end")
    manager.restart_kernel(now=True)  # as Jupyter does by itself
    client.wait_for_ready(timeout=READY_S)

    assert "3" == printed(client, "print(1 + 2)")


@pytest.mark.parametrize("how", ["cancelled", "timed_out"])
def test_a_kernel_that_the_queue_has_ended_comes_back_only_if_a_person_asks(
    kernels: Callable[..., str], running_queue: Site, how: str
) -> None:
    """The restarter of Jupyter Server tries once, and says that the kernel is dead."""
    limit = {} if how == "cancelled" else {"time_limit": "20s"}
    name, dead = kernels(mem="1G", **limit), []

    async def scene() -> None:
        manager = AsyncIOLoopKernelManager(kernel_name=name)
        await manager.start_kernel()
        manager.add_restart_callback(lambda: dead.append(True), "dead")
        job = job_of(running_queue)
        if how == "cancelled":
            running_queue.client.jobs.cancel(job.id)
        for _ in range(1200):
            if dead and manager.ready.done():
                break
            await asyncio.sleep(0.1)
        assert dead
        with pytest.raises(RuntimeError, match=rf"^job {job.id} of the kernel was ended \({how}\): restart the kernel"):
            manager.ready.result()
        assert [] == running_queue.client.jobs.list()
        await manager.restart_kernel()
        assert await manager.is_alive()
        assert job.id < job_of(running_queue).id
        await manager.shutdown_kernel(now=True)

    asyncio.run(scene())


def test_a_kernel_that_waits_too_long_leaves_no_job(kernels: Callable[..., str], running_queue: Site) -> None:
    manager = KernelManager(kernel_name=kernels(mem="1G"))
    manager.config.GpuQueueProvisioner.start_timeout = 1.0
    filler = running_queue.client.jobs.submit(["sleep", "600"], mem="8G", env={})
    running_queue.until_state(filler.id, JobState.RUNNING)

    with pytest.raises(RuntimeError, match=r"has waited for 1 s: gpuqueue why \d+ says"):
        manager.start_kernel()

    assert [filler.id] == [each.id for each in running_queue.client.jobs.list()]
    running_queue.client.jobs.cancel(filler.id)
    running_queue.until_state(filler.id, JobState.CANCELLED)


@pytest.mark.parametrize(
    ("stanza", "words"),
    [
        ({"memm": "1G"}, "no option of a kernel in gpuqueue: memm. There are "),
        ({"mem": "900G"}, "900G asked for, but the largest device can give 8G"),
    ],
)
def test_a_request_that_cannot_be_granted_is_explained(
    kernels: Callable[..., str], stanza: dict[str, Any], words: str
) -> None:
    with pytest.raises(Exception, match=words):
        KernelManager(kernel_name=kernels(**stanza)).start_kernel()


def test_a_host_without_a_device_starts_no_kernel(
    kernels: Callable[..., str], running_queue: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = kernels(mem="1G")
    monkeypatch.setenv("GPUQUEUE_HOST", "login1")

    with pytest.raises(RuntimeError, match=r"^no device of the queue is on this host, login1, and a kernel"):
        KernelManager(kernel_name=name).start_kernel()

    assert [] == running_queue.client.jobs.list()


def test_the_command_adds_a_kernel_that_starts(
    tmp_path: Path, running_queue: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))
    command = Path(sys.executable).with_name("gpuqueue-kernel")
    done = subprocess.run(
        [str(command), "--mem", "1G", "--user"], capture_output=True, text=True, check=False, timeout=120
    )
    assert (0, True) == (done.returncode, "(1G): " in done.stdout), done
    manager = KernelManager(kernel_name="python3-1g")
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=READY_S)
    client.stop_channels()
    assert 2**30 == job_of(running_queue).spec.mem_bytes
    manager.shutdown_kernel(now=True)

    wrong = subprocess.run([str(command), "--mem", "much"], capture_output=True, text=True, check=False, timeout=120)
    assert (2, True) == (wrong.returncode, "is not a size" in wrong.stderr), wrong
