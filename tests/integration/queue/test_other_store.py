"""Another program at the address of the store, which speaks the protocol and gives unexpected answers."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from spoken import speak

from gpuqueue.errors import Unreadable
from gpuqueue.queue.connect import connect_at_once
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.resp.connection import Reader

#: The answer that the program gives to every command, by its description.
ANSWERS = {
    "a number": b":1\r\n",
    "a large number": b":" + b"9" * 40 + b"\r\n",
    "a word": b"+OK\r\n",
    "a text": b"$3\r\nabc\r\n",
    "an empty text": b"$0\r\n\r\n",
    "no UTF-8": b"+\xff\xfe\r\n",
    "nothing": b"$-1\r\n",
    "no list": b"*-1\r\n",
    "an empty list": b"*0\r\n",
    "a list": b"*2\r\n:1\r\n$1\r\nx\r\n",
    "texts": b"*6\r\n" + b"$1\r\n1\r\n" * 6,
    "lists in a list": b"*1\r\n*1\r\n*1\r\n:5\r\n",
    "an error in a list": b"*1\r\n-ERR inner\r\n",
    "a map": b"%1\r\n+a\r\n+b\r\n",
    "a push": b">1\r\n+x\r\n",
    "no figure": b",nan\r\n",
    "true": b"#t\r\n",
}
COMMANDS = (
    ["submit", "--mem", "1M", "--", "true"],
    ["queue"],
    ["show", "1"],
    ["why", "1"],
    ["logs", "1"],
    ["wait", "--timeout", "0s", "1"],
    ["cancel", "1"],
    ["hold", "1"],
    ["move", "1", "--front"],
    ["edit", "1", "--mem", "2M"],
    ["tag", "1", "x"],
    ["note", "1", "x"],
    ["gpus"],
    ["limits"],
    ["drain", "0"],
)
#: Valid answers: an empty list is the empty hash of the limits and of the users that they count.
MAY_BE = {("an empty list", "limits")}


@contextlib.contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """Yield the address of a server that sends *answer* to each command."""
    with TemporaryDirectory(prefix="gq-odd-") as directory, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{directory}/s")
        listener.listen()
        threading.Thread(target=_serve, args=(listener, answer), daemon=True).start()
        yield f"unix://{directory}/s"
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # otherwise accept would not return


def _serve(listener: socket.socket, answer: bytes) -> None:
    with contextlib.suppress(OSError):
        while True:
            met, _ = listener.accept()
            threading.Thread(target=_answer, args=(met, answer), daemon=True).start()


def _answer(met: socket.socket, answer: bytes) -> None:
    reader = Reader(_more(met))
    with met, contextlib.suppress(OSError):
        while True:
            reader.answer()  # a command has the encoding of a list
            met.sendall(answer)


def _more(met: socket.socket) -> Callable[[], bytes]:
    def more() -> bytes:
        chunk = met.recv(65536)
        if not chunk:
            raise ConnectionResetError
        return chunk

    return more


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_every_command_reports_the_unexpected_answer_in_one_line(
    answer: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Regression: each was a traceback, namely a TypeError, a ValueError or an AttributeError, depending on the command.
    monkeypatch.setenv("GPUQUEUE_STATE_DIR", str(tmp_path))
    with answering(answer) as url:
        monkeypatch.setenv("GPUQUEUE_REDIS_URL", url)
        for words in COMMANDS:
            if (answer, words[0]) in {(ANSWERS[name], command) for name, command in MAY_BE}:
                continue
            output = speak(words)

            reported = (answer, words, output)
            assert output.code in {1, 3, 4}, reported
            assert output.stderr.startswith("gpuqueue: "), reported
            assert 1 == output.stderr.count("\n"), reported


def test_an_unparsable_address_is_reported_with_its_source() -> None:
    """The error for an unreadable answer names the file and line and keeps the cause, because it may be our own bug."""
    with answering(b":1\r\n") as url:
        queue = JobQueue(url, by=connect_at_once)
        with pytest.raises(
            Unreadable, match=r"is no store of this gpuqueue: .*\(TypeError in \w+\.py, line \d+"
        ) as met:
            queue.devices.all()
        queue.close()

    assert isinstance(met.value.__cause__, TypeError)


def test_a_worker_keeps_its_traceback(queue: JobQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    # Its log is for developers, and a bug of ours is no store error.
    monkeypatch.setattr(queue.store.scripts, "run", lambda *_: 1)

    with pytest.raises(AttributeError):
        queue.jobs.cancel(1)
