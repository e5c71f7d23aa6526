"""What a pilot does on the engine's machine: join, serve until the end, deliver, leave.

All of it is below one private directory, which the batch script makes and removes. Times are durations from the start
of this process: the clocks of the engine, of this machine and of the service may differ.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from types import FrameType

from gpuqueue.client import joining
from gpuqueue.client.first_call import ServiceAddress
from gpuqueue.client.remote.credentials import token_in
from gpuqueue.clock import SystemClock
from gpuqueue.console import print_message
from gpuqueue.embedded.machine import any_unsettled
from gpuqueue.engines.named import ENGINE_FILES
from gpuqueue.errors import GpuQueueError, NotAuthenticated, Refused, Unreachable
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.joining import HostSettings, common_of, lines_of
from gpuqueue.system.process import SHIELDED, installed
from gpuqueue.text.units import format_duration

#: The part of the allocation that is left for the end: delivering logs, leaving the site, in seconds.
LAST_S = 120.0
#: Longest time for ``gpuqueue down`` after ``up`` has ended, in seconds.
DOWN_S = 20.0
#: Longest time for the delivery of logs and kept files after the last run, in seconds.
DELIVER_S = 60.0
#: Time between two checks whether a run goes on, in seconds.
POLL_S = 0.5
#: How long a pilot tries to reach the service at its start, in seconds, and the pause between two tries.
REACH_S, AGAIN_S = 60.0, 5.0
#: The lock of a pilot in its directory, and the names of such directories.
LOCK, LEFT = "pilot.lock", "gpuqueue-*-??????"


@dataclass(frozen=True, kw_only=True, slots=True)
class PilotWork:
    """What one pilot is to do: ``place`` is its private directory, with the token; ``duration_s`` is all its time."""

    place: Path
    url: str
    duration_s: float
    devices: str
    pool: str
    idle_s: float
    has_ca: bool
    jobs_of_all: bool


def ahead_s(site_now: datetime) -> float:
    """Return by how many seconds the clock here is ahead of that of the service; 0 if it is not.

    The service compares the time limits of jobs with the end that this host announces, by two clocks.
    """
    return max(0.0, (SystemClock().now() - site_now).total_seconds())


def hold(place: Path) -> int:
    """Lock the directory of a pilot as long as its process lives, and return the descriptor."""
    fd = os.open(place / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return fd


def remove_left(place: Path) -> None:
    """Remove the directories beside *place* of pilots of this account that the engine has killed before they could."""
    for other in place.parent.glob(LEFT):
        if other == place or other.is_symlink():
            continue
        try:
            if other.stat().st_uid != os.getuid():
                continue
            lock = hold_if_left(other)
        except OSError:  # its pilot lives, or it is none
            continue
        shutil.rmtree(other, ignore_errors=True)
        os.close(lock)


def hold_if_left(place: Path) -> int:
    """Return the descriptor of the lock of *place*, whose pilot is gone.

    Raises:
        OSError: there is no lock, or a pilot holds it.

    """
    fd = os.open(place / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise
    return fd


class NodePilot:
    """One pilot on its node."""

    def __init__(self, work: PilotWork, environ: Mapping[str, str]) -> None:
        self._work = work
        self._environ = environ
        self._began_s = time.monotonic()
        self._ending = False
        self._up: subprocess.Popen[bytes] | None = None
        ca = work.place / "ca.pem" if work.has_ca else None
        self._service = ServiceAddress(url=work.url, token=token_in(work.place / "token"), ca=ca)

    def serve(self) -> int:
        """Do all of it, and return the exit code.

        Raises:
            Refused: the token was revoked or has expired, or the site does not allow pilots.
            Unreachable: the service cannot be reached from here.

        """
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        lock = hold(self._work.place)
        remove_left(self._work.place)
        try:
            return self._serve()
        finally:
            os.close(lock)

    def _serve(self) -> int:
        try:
            site = self._join()
        except NotAuthenticated:
            raise Refused(
                "nothing was started: the token of this pilot was revoked or has expired, so nobody needs it any more"
            ) from None
        left_s = self._left_s(site.host) - ahead_s(site.now)
        if self._ending or left_s <= LAST_S:
            self._leave()
            return 0
        config = self._write_config(site)
        # The settings of a pilot are those of its site: an image may have its own in the environment.
        environ = {name: value for name, value in self._environ.items() if not name.startswith("GPUQUEUE_")}
        environ |= {"GPUQUEUE_CONFIG": str(config), SHIELDED: "1"}
        words = [installed("gpuqueue"), "up", "--foreground", "--devices", self._work.devices]
        words += ["--until", f"{left_s - LAST_S:.0f}s"]
        # A session of its own: a signal to the group of the batch script is not for the workers.
        self._up = subprocess.Popen(words, env=environ, start_new_session=True)
        print_message("gpuqueue", f"this is host {site.host} for {format_duration(left_s)}")
        try:
            code = self._watch(self._up)
            self._take_down(environ)
            self._deliver(environ)
        finally:
            self._leave()
        return code

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        """Have the workers hand back. The engine may signal several times."""
        self._ending = True

    # ---- join ----------------------------------------------------------------------------------------------------

    def _join(self) -> HostSettings:
        """Join the site; a service that is just away is waited for."""
        node = os.uname().nodename
        while True:
            try:
                site = joining.join(self._service, dry_run=False).settings
            except Unreachable as error:
                if self._ending or time.monotonic() - self._began_s > REACH_S:
                    raise Unreachable(f"node {node} cannot reach the service: {error}") from error
                time.sleep(AGAIN_S)
                continue
            if site.group is not None and not self._work.jobs_of_all:
                self._leave()
                raise Refused("jobs run as their submitters at this site, and a pilot cannot: set jobs_of_all")
            return site

    def _left_s(self, host: str) -> float:
        """Return the seconds that are left: by the time that was asked for, and by the engine if it says less."""
        left_s = self._work.duration_s - (time.monotonic() - self._began_s)
        by_engine_s = ENGINE_FILES[host.partition("-")[0]].left_here_s(self._environ)  # its name is ENGINE-KEY
        return left_s if by_engine_s is None else min(left_s, by_engine_s)

    def _write_config(self, site: HostSettings) -> Path:
        work, state = self._work, self._work.place / "state"
        state.mkdir(mode=0o700)
        # The same id after a requeue, so that the name of the host is still free for this pilot.
        key = re.sub(r"[^a-z0-9]", "", site.host)
        (state / "machine-id").write_text(f"{key.encode().hex()[-16:]:0>16}\n")
        own = {
            "host": site.host,
            "state_dir": str(state),
            "record": False,
            "service_url": work.url,
            "service_token_file": str(work.place / "token"),
            **({"service_ca": str(work.place / "ca.pem")} if work.has_ca else {}),
            **({"pool": work.pool} if work.pool else {}),
        }
        path = work.place / "config.toml"
        path.write_text(f"{lines_of(own)}{lines_of(common_of(site))}")
        return path

    # ---- serve ---------------------------------------------------------------------------------------------------

    def _watch(self, up: subprocess.Popen[bytes]) -> int:
        """Wait for the end of *up*, and have it hand back once no run went on for the idle time.

        Time before a worker serves is not idle: a pilot with a short idle time would leave before its first claim.
        """
        runs, idle_since_s, sent_s = self._work.place / "state" / "runs", time.monotonic(), -AGAIN_S
        while True:
            try:
                return up.wait(POLL_S)
            except subprocess.TimeoutExpired:
                now_s = time.monotonic()
            if any_unsettled(runs) or not runs.exists():  # a worker makes the directory when it begins
                idle_since_s = now_s
            elif not self._ending and now_s - idle_since_s >= self._work.idle_s:
                print_message("gpuqueue", f"no job ran for {format_duration(self._work.idle_s)}: the pilot gives back")
                self._ending = True
            if self._ending and now_s - sent_s >= AGAIN_S:  # again, because it may not have been ready for a signal
                sent_s = now_s
                up.send_signal(signal.SIGINT)  # it is shielded

    # ---- leave ---------------------------------------------------------------------------------------------------

    def _take_down(self, environ: Mapping[str, str]) -> None:
        """Withdraw the devices, also if ``up`` was interrupted before it was ready, or was killed."""
        words = [installed("gpuqueue"), "down", "--preempt-jobs"]
        try:
            subprocess.run(
                words, env=dict(environ), stdout=subprocess.DEVNULL, start_new_session=True, timeout=DOWN_S, check=False
            )
        except subprocess.TimeoutExpired:
            print_message("gpuqueue: warning", f"gpuqueue down did not end within {DOWN_S:g} s")

    def _deliver(self, environ: Mapping[str, str]) -> None:
        """Send the logs and kept files that the service does not have yet."""
        words = [installed("gpuqueue-worker"), "relay", "--last", f"{DELIVER_S:g}s"]
        if subprocess.run(words, env=dict(environ), start_new_session=True, check=False).returncode:
            print_message("gpuqueue: warning", "the service did not take all logs in time: their last lines are lost")

    def _leave(self) -> None:
        try:
            joining.leave(self._service)
        except GpuQueueError as error:
            if not isinstance(error, NotAuthenticated):  # revoked already
                print_message("gpuqueue: warning", f"the token of this pilot could not be revoked: {error}")
