"""What a command says about a store that does not answer: why it died, and who starts it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import pytest
from bounded import until
from own_store import OwnStore

from gpuqueue.embedded import store as embedded
from gpuqueue.embedded.supervision import StoreSupervisor
from gpuqueue.errors import StoreUnreachable
from gpuqueue.queue import absence
from gpuqueue.queue.absence import THEN, StoreState, StoreTrouble
from gpuqueue.queue.connect import connect, connect_at_once
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.service.responses import problem_of
from gpuqueue.settings.settings import Settings
from gpuqueue.system.process import ProcessIdentity
from gpuqueue.text.units import MIB

UP = "gpuqueue up"
CLIENTS = pytest.mark.parametrize("by", [connect, connect_at_once])


def error_of(settings: Settings, by: Callable[..., object] = connect_at_once) -> StoreUnreachable:
    """Return the error of a command about the store of *settings*."""
    queue = JobQueue.of(settings, by=by)  # type: ignore[arg-type]
    with pytest.raises(StoreUnreachable) as caught:
        queue.epoch()
    queue.close()
    return caught.value


def dead_store(store: OwnStore, state: StoreState) -> None:
    """Kill the store, and wait until a supervisor with a long pause has recorded it as *state*."""
    supervisor = StoreSupervisor(store.settings, lambda _failures: 0.0, may_end=False)
    supervisor.poll()
    supervisor._pause_s = lambda _failures: 600.0 if state is StoreState.PAUSING else 0.0
    store.kill()

    def recorded() -> bool:
        supervisor.poll()
        trouble = StoreTrouble.read(store.settings)
        return trouble is not None and trouble.state is state

    until(recorded, what=f"the state {state.value}")


def without_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the supervisor, which is this process, be gone."""
    monkeypatch.setattr(ProcessIdentity, "alive", lambda _identity: False)


def test_a_killed_store_says_why_and_that_it_comes_back(own_store: OwnStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is sent to ``up`` while the host process starts it again. Without that process there is only ``up``."""
    dead_store(own_store, StoreState.PAUSING)

    error = error_of(own_store.settings)
    assert f"the store at {own_store.url} does not answer: it died at " in error.what
    assert "was killed" in error.what
    assert "it is started again, try again in a moment" == error.remedy
    assert f"{error.what}: ask the administrator" in problem_of(error).detail

    without_supervisor(monkeypatch)
    assert "does not answer: is it running? Start it with gpuqueue up" in str(error_of(own_store.settings))


def test_a_full_disk_is_named_with_its_size(own_store: OwnStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store starts when there is room, while the host process lives. Users of a service learn the reason."""
    monkeypatch.setattr(embedded.Room, "of", classmethod(lambda cls, _place: cls(0, 24 * MIB)))
    dead_store(own_store, StoreState.NO_ROOM)
    full = f"the disk of {own_store.settings.state_dir / 'store'} is full: 24M of 24M"

    error = error_of(own_store.settings)
    assert f"the store at {own_store.url} does not answer: {full}" == error.what
    assert "make room there, and the store starts" == error.remedy
    assert f"{error.what}: ask the administrator of this site" in problem_of(error).detail

    without_supervisor(monkeypatch)
    assert f"{full}: mend that, then gpuqueue up" in str(error_of(own_store.settings))


def test_a_new_supervisor_answers_for_the_record_of_the_last(own_store: OwnStore) -> None:
    """Else a store that a restarted host process starts again would seem to need ``up``."""
    dead_store(own_store, StoreState.PAUSING)
    path = absence.record_of(own_store.settings)
    path.write_text(path.read_text().replace(f'"supervisor": "{os.getpid()} ', '"supervisor": "1 '))
    assert UP in error_of(own_store.settings).remedy

    StoreSupervisor(own_store.settings, lambda _failures: 0.0, may_end=False)
    assert UP not in error_of(own_store.settings).remedy


def test_a_store_that_hangs_is_not_started_again(own_store: OwnStore) -> None:
    """Its server lives, so ``up`` would change nothing."""
    reason, remedy = absence.why_away(own_store.settings)

    assert "it runs (pid " in reason
    assert UP not in remedy


@CLIENTS
@pytest.mark.parametrize("url", ["unix:///run/others/redis.sock", "redis://127.0.0.1:1"])
def test_the_store_of_others_is_started_by_others(url: str, by: Callable[..., object], tmp_path: Path) -> None:
    """``up`` would not start it."""
    settings = Settings.load({"GPUQUEUE_REDIS_URL": url, "GPUQUEUE_STATE_DIR": str(tmp_path)})

    assert f"the store at {url} does not answer: start it there, or correct GPUQUEUE_REDIS_URL" in str(
        error_of(settings, by)
    )


@CLIENTS
def test_an_unknown_host_name_is_named(
    by: Callable[..., object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A misspelt name is the address's mistake: nothing there can be started."""

    def unknown(*_: object, **__: object) -> object:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    url = "redis://ada:hunter2@gpu-sever:6379/0"
    error = error_of(Settings.load({"GPUQUEUE_REDIS_URL": url, "GPUQUEUE_STATE_DIR": str(tmp_path)}), by)

    assert "has no known host (Name or service not known): correct GPUQUEUE_REDIS_URL" in str(error)
    assert "hunter2" not in str(error)


def test_the_store_of_a_service_is_started_as_a_service(tmp_path: Path) -> None:
    """Its account does not type ``up`` beside the unit that runs it."""
    environ = {"GPUQUEUE_STATE_DIR": str(tmp_path), "GPUQUEUE_STORE_SOCKET": str(tmp_path / "shared" / "s.sock")}

    assert "systemctl start gpuqueue-store" in error_of(Settings.load(environ)).remedy


def test_a_store_that_is_given_up_names_the_latest_reason() -> None:
    """It was killed first, and then its files could not be read: only the second is to be repaired."""
    why = f"the store (pid 7) was killed{THEN}the store cannot read its files"
    trouble = StoreTrouble(at=datetime.now(timezone.utc), why=why, state=StoreState.GIVEN_UP)

    assert "the store cannot read its files" == trouble.brief
