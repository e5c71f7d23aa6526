"""The health checks of host and recorder, on real processes."""

from __future__ import annotations

import os
import signal
import subprocess

from bounded import until
from site_of_one import BIN, Site

from workers.doctor.examination import trouble_of


def host(site: Site) -> str:
    """Return what is wrong with the host process."""
    return trouble_of("host", site.queue, site.settings)


def recorder(site: Site) -> str:
    """Return what is wrong with the recorder."""
    return trouble_of("recorder", site.queue, site.settings)


def test_a_host_is_well_while_its_workers_send_heartbeats(site: Site) -> None:
    """Without a device, and with a worker that was stopped, it is not."""
    assert host(site).startswith(f"host {site.settings.host} serves no device")
    worker = site.start_worker()
    until(lambda: not host(site), what="a healthy host")

    os.kill(worker.pid, signal.SIGSTOP)
    until(lambda: "1 of 1 devices" in host(site), what="the silence")
    os.kill(worker.pid, signal.SIGCONT)
    until(lambda: not host(site), what="a healthy host")


def test_a_recorder_is_well_while_it_runs(site: Site) -> None:
    """Before its start, and when it was stopped, it is not. The command's exit code says so."""
    assert "no reaper has run: the recorder has not started" == recorder(site)
    process = site.spawn("record")
    until(lambda: not recorder(site), what="a healthy recorder")

    os.kill(process.pid, signal.SIGSTOP)
    until(lambda: "the recorder's process is silent for" in recorder(site), what="the silence")
    words = [str(BIN / "gpuqueue-worker"), "health", "recorder"]
    done = subprocess.run(words, env=site.environ, capture_output=True, text=True, check=False, timeout=60)
    assert (1, 1) == (done.returncode, len(done.stderr.splitlines()))
    os.kill(process.pid, signal.SIGCONT)
    until(lambda: not recorder(site), what="a healthy recorder")
