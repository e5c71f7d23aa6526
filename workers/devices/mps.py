"""NVIDIA's MPS on this host: whether jobs can share its GPUs through it, and which processes are its servers.

The site starts the control daemon of MPS, and turns MPS on for the workers of a host with the setting ``mps``. A job on
a GPU is then a client of the daemon's server. docs/howto/mig-and-mps.md describes this for users.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import socket
import stat
import subprocess
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

from gpuqueue.errors import Refused
from gpuqueue.model.device import Device, DeviceKind, Reading
from gpuqueue.settings.settings import Settings
from gpuqueue.system.timed_call import CallFailed, TimedCall
from gpuqueue.text.sanitize import in_one_line

#: The program that starts the control daemon, and that asks it.
CONTROL = "nvidia-cuda-mps-control"
#: The variables of a client: where it finds the daemon, and how much of the GPU's threads it may use, in percent.
PIPE_DIRECTORY, THREAD_PERCENTAGE = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
#: The socket of the daemon in its pipe directory.
CONTROL_SOCKET = "control"
#: How long the daemon and the driver may take to answer, in seconds.
ANSWER_S = 5.0
#: The name of a server in /proc, which cuts ``nvidia-cuda-mps-server`` to 15 characters.
_SERVER = b"nvidia-cuda-mps"


def check(settings: Settings, devices: Iterable[Device]) -> None:
    """Return if jobs can share the GPUs among *devices* through MPS, or if the site has not turned it on.

    Raises:
        Refused: They cannot. The message says why.

    """
    why = obstacle(settings, devices)
    if why is not None:
        raise Refused(f"mps is on, and {why}")


def obstacle(settings: Settings, devices: Iterable[Device]) -> str | None:
    """Return why jobs cannot share the GPUs among *devices* through MPS, None if they can or need not."""
    gpus = [device for device in devices if device.kind is DeviceKind.GPU]
    if not settings.mps or not gpus:
        return None
    if settings.launcher_in_use is not None:
        return "run_as is submitter, but a server of MPS takes the jobs of one account: leave out one of the two"
    instance = next((device for device in gpus if device.mig_parent is not None), None)
    if instance is not None:
        return f"{instance.uuid} is a MIG instance, which would need a control daemon of its own: leave out mps"
    pipe_directory = settings.mps_pipe_directory
    return _driver_lacks(gpus) or _place_trouble(pipe_directory) or _daemon_trouble(pipe_directory)


def client_environment(settings: Settings) -> dict[str, str]:
    """Return the variables that make a job a client of MPS. There are none if the site has not turned it on."""
    if not settings.mps:
        return {}
    percentage = settings.mps_thread_percentage
    return {
        PIPE_DIRECTORY: str(settings.mps_pipe_directory),
        **({THREAD_PERCENTAGE: str(percentage)} if percentage is not None else {}),
    }


def without_servers(reading: Reading, *, proc: Path = Path("/proc")) -> Reading:
    """Return *reading* without the processes of servers of MPS.

    A server works for its clients, which the driver lists as well. A driver that charges the clients' memory to the
    server would have it counted twice. The server's own memory remains part of the used bytes of the device.
    """
    others = {pid: held for pid, held in reading.processes.items() if not _is_server(pid, proc)}
    return reading if len(others) == len(reading.processes) else replace(reading, processes=others)


class DaemonWatch:
    """Notices that the control daemon has ended: a job that starts then would run without MPS. Thread-safe.

    A daemon that ends in order removes its socket, which is cheap to see. One that was killed leaves it behind. Only a
    connection shows that, and each one adds lines to the log of a daemon that runs. So it is made only before a job
    starts, and then until the daemon is back.
    """

    def __init__(self, settings: Settings, device: Device) -> None:
        uses_mps = settings.mps and device.kind is DeviceKind.GPU
        self._control = settings.mps_pipe_directory / CONTROL_SOCKET if uses_mps else None
        self._has_ended = False

    def trouble(self, *, at_start: bool = False) -> str | None:
        """Return why no job may start on the device now, or None. *at_start* is whether one is about to."""
        if self._control is None:
            return None
        connects = at_start or self._has_ended
        has_ended = _has_ended(self._control, connects=connects)
        if has_ended or connects:
            self._has_ended = has_ended
        if not has_ended:
            return None
        return f"mps is on, and its control daemon at {self._control.parent} has ended: start {CONTROL} -d"


def _has_ended(control: Path, *, connects: bool) -> bool:
    """Return whether no daemon listens at the socket *control*; without *connects* only if it is not there.

    Any other answer counts as a daemon, since the start of the worker has found one there.
    """
    try:
        is_socket = stat.S_ISSOCK(control.stat().st_mode)
        if not connects or not is_socket:
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.setblocking(False)
            return client.connect_ex(str(control)) in {errno.ECONNREFUSED, errno.ENOENT}
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False


def _changeable(pipe_directory: Path) -> Path | None:
    """Return the directory by which other accounts could replace the daemon's files, None if they cannot.

    Further above, one such as /tmp is safe as well: nobody can rename there what is of another account.
    """
    for place in (pipe_directory, pipe_directory.resolve()):
        for above, directory in enumerate((place, *place.parents)):
            about = directory.stat()
            is_safe = above > 1 and about.st_mode & stat.S_ISVTX
            writable = about.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not is_safe
            if about.st_uid not in {0, os.geteuid()} or writable:
                return directory
    return None


def _is_server(pid: int, proc: Path) -> bool:
    try:
        return (proc / str(pid) / "comm").read_bytes().rstrip(b"\n") == _SERVER
    except OSError:  # it has ended, or is hidden, or is in another pid namespace
        return False


def _driver_lacks(gpus: Iterable[Device]) -> str | None:
    """Return what the driver or a GPU lacks for limits of clients, None if it lacks nothing."""
    from workers.devices import nvml_calls  # noqa: PLC0415 - it needs pynvml

    for call in [TimedCall(partial(nvml_calls.lacking, gpu.uuid), ANSWER_S) for gpu in gpus]:
        with contextlib.suppress(CallFailed):  # a GPU that does not answer is closed for that
            why = call.result()
            if why is not None:
                return why
    return None


def _place_trouble(pipe_directory: Path) -> str | None:
    """Return why no control daemon can be trusted there, None if one can."""
    if not os.access(pipe_directory, os.X_OK):
        return f"there is no pipe directory {pipe_directory}: start {CONTROL} -d, or correct mps_pipe_directory"
    if (place := _changeable(pipe_directory)) is not None:
        return f"other accounts can write in {place}, and could put a daemon there: choose another mps_pipe_directory"
    return None


def _daemon_trouble(pipe_directory: Path) -> str | None:
    """Return why the control daemon cannot be used, None if it answers."""
    program = shutil.which(CONTROL)
    if program is None:
        return f"the program {CONTROL} is not on the worker's PATH: install it with the driver"
    try:
        done = subprocess.run(
            [program],
            input=b"get_server_list\n",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, PIPE_DIRECTORY: str(pipe_directory)},
            timeout=ANSWER_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"its control daemon at {pipe_directory} does not answer within {ANSWER_S:g} s: start it again"
    except OSError as error:
        return f"{program} cannot be started: {error.strerror}"
    if done.returncode == 0:
        return None
    words = in_one_line(done.stdout.decode(errors="replace").strip()) or f"exit code {done.returncode}"
    return f"its control daemon at {pipe_directory} does not answer ({words}): start {CONTROL} -d"
