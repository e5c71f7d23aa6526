"""Tests of relays that are killed while they deliver: the next one brings everything, and nothing twice."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from bounded import until
from host_service import TOKEN, HostService, host_service

from gpuqueue.model.run import RunDevice
from gpuqueue.settings.settings import Settings
from gpuqueue.text.units import MIB
from workers.run import deliveries
from workers.run.deliveries import Delivery
from workers.run.directory import Held, RunDir

PROGRAM = Path(__file__).parents[1] / "support" / "relay_program.py"
PLACE = "1/1.ab"


class Host:
    """A host whose relay is a process of its own, with one run that has ended."""

    def __init__(self, directory: Path, service: HostService) -> None:
        token = directory / "token"
        token.write_text(TOKEN)
        token.chmod(0o600)
        self.environ = {
            **os.environ,
            "GPUQUEUE_STATE_DIR": str(directory / "host"),
            "GPUQUEUE_SERVICE_URL": service.url,
            "GPUQUEUE_SERVICE_TOKEN_FILE": str(token),
        }
        self.settings = Settings.load(self.environ)
        self.settings.state_dir.mkdir()
        self.log, self.model = os.urandom(9 * MIB), os.urandom(5 * MIB)
        self._log_of_relays = directory / "relay.log"

    def end_run(self, *keep: str) -> Path:
        """Make a settled run with a log and files to keep, and return its directory."""
        held = Held(job_id=1, token="1.ab", devices=(RunDevice(uuid="dev-0", lease_bytes=1),))
        directory = RunDir.create(self.settings.runs_dir, held)
        deliveries.add(self.settings, Delivery(job_id=1, token=held.token, keep=keep))
        directory.note_user("ann")
        directory.log.write_bytes(self.log)
        tree = directory.path / "code" / "tree"
        tree.mkdir(parents=True)
        (tree / "model.pt").write_bytes(self.model)
        directory.settle()
        return directory.path

    @contextmanager
    def relay(self) -> Iterator[subprocess.Popen[bytes]]:
        """Run a relay, and kill it at the end."""
        with self._log_of_relays.open("ab") as log:
            process = subprocess.Popen([sys.executable, str(PROGRAM)], env=self.environ, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.kill()
            process.wait(timeout=30)

    def until_delivered(self) -> None:
        """Wait until nothing is left to deliver."""
        until(lambda: not deliveries.names(self.settings), what=self._log_of_relays.read_text())


@pytest.fixture
def service(tmp_path: Path) -> Iterator[HostService]:
    """Return a running service."""
    with host_service(tmp_path / "service") as made:
        yield made


@pytest.fixture
def host(tmp_path: Path, service: HostService) -> Host:
    """Return a host of the service."""
    return Host(tmp_path, service)


def check(host: Host, service: HostService) -> None:
    """Check that the service has everything, whole."""
    assert host.log == service.delivered(PLACE, "log")
    assert service.is_complete(PLACE)
    with tarfile.open(fileobj=io.BytesIO(service.delivered(PLACE, "results") or b"")) as archive:
        assert ["model.pt"] == archive.getnames()
        model = archive.extractfile("model.pt")
        assert model is not None
        assert host.model == model.read()


@pytest.mark.parametrize("name", ["log?offset=0&", "log?offset=4194304&", "results"])
def test_a_relay_that_is_killed_while_it_sends_loses_nothing(host: Host, service: HostService, name: str) -> None:
    """It is killed in the middle of a request: of the first part of a log, of a later one, and of an archive."""
    reached, killed = threading.Event(), threading.Event()
    calls: list[str] = []

    def on_part(path: str, left: int) -> None:
        if f"/runs/{PLACE}/{name}" in path and left < MIB and not killed.is_set():
            reached.set()
            assert killed.wait(60)

    service.on_part = on_part
    directory = host.end_run("*.pt")
    with host.relay() as process:
        assert reached.wait(60)
        process.kill()
        process.wait(timeout=30)
    killed.set()
    calls += service.calls
    assert deliveries.names(host.settings)

    with host.relay():
        host.until_delivered()

    check(host, service)
    assert {"log", "user", "code"} == {each.name for each in directory.iterdir()}
    if name == "results":  # the logs were there, and were not sent again
        again = [each for each in service.calls[len(calls) :] if "/log?" in each]
        assert [f"PUT /runs/{PLACE}/log?offset=0&replace=false"] == again


def test_a_relay_that_is_killed_while_it_packs_loses_nothing(host: Host, service: HostService, tmp_path: Path) -> None:
    """A part of an archive never takes the place of the whole."""
    wait = tmp_path / "wait"
    wait.touch()
    directory = host.end_run("*.pt", f"while={wait}")
    part = directory / ".results.tar"
    with host.relay() as process:
        until(lambda: part.exists() and part.stat().st_size > MIB, what="a part of the archive")
        process.kill()
        process.wait(timeout=30)
    assert not (directory / "results.tar").exists()
    assert part.exists()  # without its last bytes, which the program has not written
    wait.unlink()

    with host.relay():
        host.until_delivered()

    check(host, service)
    assert {"log", "user", "code"} == {each.name for each in directory.iterdir()}


@pytest.mark.full
def test_a_service_that_restarts_loses_nothing(tmp_path: Path) -> None:
    """The relay waits for it, and goes on where the service is."""
    second_part = threading.Event()

    def refuse(call: str) -> int | None:
        if "offset=4194304" in call:
            second_part.set()
        return 503 if second_part.is_set() else None

    with ExitStack() as stack:
        with host_service(tmp_path / "service") as service:
            host, port = Host(tmp_path, service), int(service.url.rpartition(":")[2])
            service.refuse = refuse
            host.end_run("*.pt")
            stack.enter_context(host.relay())
            assert second_part.wait(60)
        again = stack.enter_context(host_service(tmp_path / "service", port=port))
        host.until_delivered()
        check(host, again)
        assert not any("offset=0&replace=false" in call and "/log?" in call for call in again.calls)
