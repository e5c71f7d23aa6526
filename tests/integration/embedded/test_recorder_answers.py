"""On one person's machine the recorder answers what commands ask the history."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from bounded import until
from factories import make_spec
from forked_command import BIN

from gpuqueue.client import Client
from gpuqueue.client.history import History
from gpuqueue.client.remote.history import RemoteHistory
from gpuqueue.client.remote.http import answers
from gpuqueue.embedded.store import EmbeddedStore
from gpuqueue.errors import HistoryUnreachable
from gpuqueue.history.migrate import upgrade
from gpuqueue.settings.settings import Settings
from gpuqueue.text.units import MIB
from gpuqueue.version import VERSION


class OwnMachine:
    """A store and a history in the state directory, as ``up`` has them, and a recorder."""

    def __init__(self, state_dir: Path) -> None:
        self.environ = {"GPUQUEUE_STATE_DIR": str(state_dir), "GPUQUEUE_CONFIG": os.devnull, "GPUQUEUE_HOST": "own"}
        self.settings = Settings.load(self.environ)
        assert self.settings.server_socket is not None
        self.socket = self.settings.server_socket
        self._log = state_dir / "recorder.log"

    def start_recorder(self) -> subprocess.Popen[bytes]:
        """Start the recorder as the host process does, and wait until it answers."""
        command = [str(BIN / "gpuqueue-worker"), "record", "--socket", str(self.socket)]
        with self._log.open("ab") as log:
            process = subprocess.Popen(command, env={**os.environ, **self.environ}, stdout=log, stderr=log)
        until(lambda: process.poll() is not None or answers(self.socket), what="the socket")
        assert process.poll() is None, self._log.read_text()
        return process

    def names(self, kind: type) -> list[str]:
        """Return the names of the recorded jobs, as a client finds them whose history is of this *kind*."""
        with Client(self.settings) as client:
            assert kind is type(client.history)
            return [record.job.spec.name for record in client.history.search()]


@pytest.fixture
def machine() -> Iterator[OwnMachine]:
    """Return a machine whose store runs. The path of its directory is short enough for a socket."""
    home = Path(tempfile.mkdtemp(prefix="gpuqueue-own-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, home)
        made = OwnMachine(home)
        store = EmbeddedStore(made.settings)
        store.start()
        stack.callback(store.stop)
        upgrade(made.settings.database_url)
        yield made


def test_the_owner_of_a_queue_is_sent_to_the_command_up(machine: OwnMachine) -> None:
    """On a machine of one's own there is no administrator to ask. `history` said so, once the recorder answered."""
    recorder = machine.start_recorder()
    Path(machine.settings.state_dir, "history.db").unlink()
    with Client(machine.settings) as client, pytest.raises(HistoryUnreachable, match="run gpuqueue up"):
        assert RemoteHistory is type(client.history)
        client.history.search()
    recorder.terminate()
    assert 0 == recorder.wait(timeout=60)


def test_a_question_is_answered_by_the_recorder_or_by_the_database(machine: OwnMachine) -> None:
    """Before it starts, after SIGKILL and after its end, commands read the database, with the same answer."""
    assert [] == machine.names(History)
    recorder = machine.start_recorder()
    with Client(machine.settings) as client:
        until(lambda: client.queue.epoch() is not None, what="an open store")
        client.queue.requests.submit(make_spec(name="asked", mem_bytes=MIB))
    until(lambda: machine.names(RemoteHistory) == ["asked"], what="the job in the history")
    assert 0o600 == machine.socket.stat().st_mode & 0o777

    recorder.kill()
    recorder.wait(timeout=30)
    assert ["asked"] == machine.names(History)

    recorder = machine.start_recorder()
    assert ["asked"] == machine.names(RemoteHistory)
    recorder.send_signal(signal.SIGTERM)
    assert 0 == recorder.wait(timeout=60)
    assert ["asked"] == machine.names(History)


def test_what_comes_after_the_signal_is_still_recorded(machine: OwnMachine) -> None:
    """The end of the API does not end the recorder before the outbox is empty."""
    recorder = machine.start_recorder()
    with Client(machine.settings) as client:
        until(lambda: client.queue.epoch() is not None, what="an open store")
        for number in range(50):
            client.queue.requests.submit(make_spec(name=f"job-{number}", mem_bytes=MIB))
    recorder.send_signal(signal.SIGTERM)

    assert 0 == recorder.wait(timeout=60)
    assert 50 == len(machine.names(History))


@pytest.mark.parametrize(
    "other",
    [
        {"GPUQUEUE_DATABASE_URL": "sqlite:////elsewhere/history.db"},
        {"GPUQUEUE_REDIS_URL": "redis://elsewhere:6379/0"},
        {"GPUQUEUE_RECORD": "false"},
    ],
    ids=lambda other: next(iter(other)),
)
def test_another_store_or_history_has_another_recorder(other: dict[str, str], tmp_path: Path) -> None:
    """A recorder of the same state directory would answer from another history."""
    own = {"GPUQUEUE_STATE_DIR": str(tmp_path), "GPUQUEUE_CONFIG": os.devnull}

    assert tmp_path / "store" / f"server-{VERSION}.sock" == Settings.load(own).server_socket
    assert Settings.load({**own, **other}).server_socket is None
