"""The kernel provisioner: what Jupyter does with the process of a kernel, it does here with a job.

The job must run on the host of Jupyter, because both use one connection file, and ports or sockets of one host.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.provisioning.local_provisioner import LocalProvisioner
from traitlets import Float

from gpuqueue import Client, EndingKind, GpuQueueError, Job, JobRequest, JobState
from gpuqueue.errors import Unreachable

T = TypeVar("T")

#: Options of a submit that are set here, from the kernel and what Jupyter asks for.
SET_HERE = frozenset(
    {
        *("command", "args", "env", "cwd", "array", "sweep", "each_line", "at_once", "max_failures", "output", "error"),
        *("snapshot", "snapshot_allow", "keep", "pty", "warm", "python", "requeue", "retries", "retry_on", "probe"),
        *("mem_retries", "on", "nodes", "dedupe", "hold", "begin", "given_in", "anyway"),
    }
)
OPTIONS = frozenset(field.name for field in dataclasses.fields(JobRequest)) - SET_HERE
#: A kernel that nobody uses holds its memory until its time is over.
TIME_LIMIT = "8h"
#: Writes the id of its process, which becomes that of the kernel, beside the connection file.
START = ("/bin/sh", "-c", 'echo $$ >"$0" && exec "$@"')
#: Least time for the end of a kernel, half of it before it is cancelled, in seconds.
SHUTDOWN_S = 20.0
#: Time between two questions about the state of a job, in seconds.
POLL_S = 0.2


class GpuQueueProvisioner(LocalProvisioner):
    """Runs a kernel as a job. The stanza ``config`` of the kernel has options of a submit, such as ``"mem": "8G"``."""

    parent: Any
    start_timeout = Float(600.0, config=True, help="How long a kernel may wait in the queue, in seconds.")

    def __init__(self, **named: Any) -> None:
        """Take the options of the stanza.

        Raises:
            ValueError: there is no such option.

        """
        known = set(self.trait_names()) | {"parent"}
        if unknown := sorted(named.keys() - known - OPTIONS):
            raise ValueError(f"no option of a kernel in gpuqueue: {', '.join(unknown)}. There are {_listed(OPTIONS)}")
        self._options = {name: named.pop(name) for name in OPTIONS & named.keys()}
        super().__init__(**named)
        self._job: Job | None = None
        #: Whether Jupyter has asked for the end of the kernel, by a message or by a signal.
        self._is_asked_to_end = False
        self._client: Client | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="gpuqueue")  # a client is for one thread

    @property
    def has_process(self) -> bool:
        """Whether there is a job, which may have ended."""
        return self._job is not None

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        """Submit the job of the kernel, and wait until it runs.

        Raises:
            RuntimeError: it does not run, or not here. It is cancelled then.

        """
        self.cwd = kwargs.get("cwd", Path.cwd())
        try:
            await self._ask(self._must_not_stay_dead)
            request = self._request(cmd, kwargs)
            job = await self._ask(lambda client: client.jobs.submit_request(_on_this_host(client, request)))
            self.log.info("kernel %s is job %s of gpuqueue", self.kernel_id, job.id)
            self._job, self._is_asked_to_end = job, False
            await self._until_it_runs(job)
        except BaseException:
            await self._cancel()
            self._job = None
            await self._close()
            raise
        return self.connection_info

    async def poll(self) -> int | None:
        """Return None while the job has not ended. A queue that does not answer says nothing about the kernel."""
        job = self._job
        if job is None:
            return 0
        with contextlib.suppress(Unreachable):
            state = (await self._ask(lambda client: client.jobs.get(job.id))).state
            return None if not state.is_end else 0 if state is JobState.SUCCEEDED else 1
        return None

    async def wait(self) -> int | None:
        """Wait for the end of the job."""
        while (code := await self.poll()) is None:  # noqa: ASYNC110 - the queue is asked, it sends no event
            await asyncio.sleep(POLL_S)
        if self._job is not None and self._is_asked_to_end:
            self._job = None
        return code

    async def send_signal(self, signum: int) -> None:
        """Send a signal to the kernel and its children, as Jupyter does with a kernel of its own."""
        if signum in {signal.SIGTERM, signal.SIGKILL}:
            await self._cancel()
        elif self._job is not None:
            with contextlib.suppress(OSError, ValueError):  # it has ended, or has not begun
                self._signal(self._job, signum)

    async def kill(self, restart: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 - the signature of Jupyter
        """Cancel the job, which ends all of its processes."""
        await self._cancel()

    async def terminate(self, restart: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 - as above
        """Cancel the job, which ends all of its processes."""
        await self._cancel()

    async def shutdown_requested(self, restart: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 - as above
        """Note that the kernel was asked to end."""
        self._is_asked_to_end = True

    def get_shutdown_wait_time(self, recommended: float = 5.0) -> float:
        """Return how long a kernel may take to end by itself: its job has ended only after its last process."""
        return max(recommended, SHUTDOWN_S)

    async def cleanup(self, restart: bool = False) -> None:  # noqa: FBT001, FBT002 - as above
        """Leave nothing behind but the job in the history."""
        await super().cleanup(restart)
        if self._job is not None and await self.poll() is None:
            await self._cancel()
        with contextlib.suppress(OSError):
            self._pid_file.unlink()
        if not restart:
            await self._close()

    async def get_provisioner_info(self) -> dict[str, Any]:
        """Return what another process needs to go on with this kernel."""
        found = await super().get_provisioner_info()
        return {**found, "job": None if self._job is None else self._job.id}

    async def load_provisioner_info(self, provisioner_info: dict[str, Any]) -> None:
        """Go on with the kernel of another process."""
        await super().load_provisioner_info(provisioner_info)
        number = provisioner_info["job"]
        self._job = None if number is None else await self._ask(lambda client: client.jobs.get(number))

    # ------------------------------------------------------------------------------------------------------------------

    def _signal(self, job: Job, signum: int) -> None:
        """Send a signal to the processes of the kernel. Its number may be that of another process by now."""
        pid = int(self._pid_file.read_text(encoding="ascii"))
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        if signum and f"GPUQUEUE_JOB_ID={job.id}".encode() in environment:
            os.killpg(os.getpgid(pid), signum)

    @property
    def _pid_file(self) -> Path:
        return Path(f"{self.parent.connection_file}.pid")

    def _request(self, cmd: list[str], given: dict[str, Any]) -> JobRequest:
        name = f"kernel-{self.parent.kernel_name}"
        options: dict[str, Any] = {"name": name, "time_limit": TIME_LIMIT, **self._options}
        # It never runs twice: without its variables it is another kernel.
        fixed: dict[str, Any] = {"snapshot": False, "requeue": False, "mem_retries": 0}
        env = {**given.get("env", {}), "JPY_PARENT_PID": "0"}  # the kernel would end, as its parent is another one
        return JobRequest([*START, str(self._pid_file), *cmd], env=env, cwd=given.get("cwd"), **fixed, **options)

    async def _until_it_runs(self, job: Job) -> None:
        until_s = time.monotonic() + self.start_timeout
        while True:
            now = await self._ask(lambda client: client.jobs.get(job.id))
            if now.state is JobState.RUNNING:
                if now.host != self._host:
                    raise RuntimeError(
                        f"job {job.id} runs on {now.host}, and its kernel can be used only from there: choose a device "
                        f"of {self._host}, or start Jupyter on {now.host} with gpuqueue notebook"
                    )
                return
            if now.state in {JobState.CANCELLED, JobState.HELD, JobState.FAILED, JobState.LOST}:
                raise RuntimeError(f"job {job.id} of the kernel is {now.state}: gpuqueue show {job.id} says why")
            if now.state.is_end:
                return
            if time.monotonic() > until_s:
                raise RuntimeError(
                    f"job {job.id} of the kernel has waited for {self.start_timeout:g} s: gpuqueue why {job.id} says "
                    "for what. It is cancelled: ask for less memory, or for a longer start_timeout"
                )
            await asyncio.sleep(POLL_S)

    def _must_not_stay_dead(self, client: Client) -> None:
        """Check that a kernel which the queue has ended does not come back by itself: that would take a new turn.

        Raises:
            RuntimeError: its job was cancelled or has reached its time limit, and nobody has asked for a restart.

        """
        job, self._job = self._job, None
        if job is None or self._is_asked_to_end:
            return
        run = client.jobs.newest(job.id).last_run
        kind = None if run is None or run.ending is None else run.ending.kind
        if kind not in {EndingKind.EXITED, EndingKind.SIGNALLED}:
            restarter = getattr(self.parent, "_restarter", None)
            if restarter is not None:  # it tries once, and Jupyter shows a kernel that restarts
                restarter._fire_callbacks("dead")  # noqa: SLF001 - it has no other way
            raise RuntimeError(f"job {job.id} of the kernel was ended ({kind}): restart the kernel if you want another")

    async def _cancel(self) -> None:
        job = self._job
        if job is not None and await self.poll() is None:
            self._is_asked_to_end = True
            with contextlib.suppress(GpuQueueError):  # it has ended, or the queue does not answer
                await self._ask(lambda client: client.jobs.cancel(job.id))

    async def _close(self) -> None:
        await self._ask(lambda client: client.close())
        self._client = None

    @property
    def _host(self) -> str:
        return self._settings_client().settings.host

    def _settings_client(self) -> Client:
        if self._client is None:
            self._client = Client()
        return self._client

    async def _ask(self, question: Callable[[Client], T]) -> T:
        """Return the answer to *question*. No other kernel waits for that."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: question(self._settings_client()))


def _on_this_host(client: Client, request: JobRequest) -> JobRequest:
    """Return *request* for the devices of this host, if it names none.

    Raises:
        RuntimeError: this host has no device of the queue.

    """
    host = client.settings.host
    devices = client.devices.list()
    here = [each.device.uuid for each in devices if each.host == host]
    if not here:
        raise RuntimeError(
            f"no device of the queue is on this host, {host}, and a kernel can be used only on its own: start Jupyter "
            "on the host with the GPU, with gpuqueue notebook"
        )
    if request.device is not None or len(here) == len(devices):
        return request
    return dataclasses.replace(request, device=here)


def _listed(names: frozenset[str]) -> str:
    return ", ".join(sorted(names))
