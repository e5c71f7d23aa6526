"""The recipe for VS Code: a debugger attaches to a program in a job, through a forwarded port."""

from __future__ import annotations

import queue
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bounded import until
from debugpy.common import log as debugpy_log
from debugpy.common import messaging
from site_of_one import Site

from gpuqueue.model.job import JobState

debugpy_log.stderr.levels = set()
PROGRAM = """
def step(number):
    square = number * number
    return square

print("total", sum(step(number) for number in range(4)))
"""


class Editor:
    """What an editor does with a debugger, by the protocol of both (DAP) and the library of debugpy."""

    def __init__(self, port: int) -> None:
        self.events: queue.Queue[tuple[str, Any]] = queue.Queue()
        self._link = socket.create_connection(("127.0.0.1", port), timeout=60)
        stream = messaging.JsonIOStream.from_socket(self._link, "job")
        self.channel = messaging.JsonMessageChannel(stream, self)
        self.channel.start()

    def event(self, event: Any) -> None:
        """Take an event of the debugger."""
        self.events.put((event.event, event.body))

    def disconnect(self) -> None:
        """Note that the connection is over."""
        self.events.put(("disconnect", None))

    def waits_for(self, name: str) -> Any:
        """Return the body of the next event *name*."""
        while True:
            event, body = self.events.get(timeout=60)
            if event == name:
                return body
            assert event != "disconnect", f"the connection is over before {name}"

    def close(self) -> None:
        """Leave the program."""
        self.channel.close()
        self._link.close()


def test_a_breakpoint_stops_the_program_of_a_job(running_queue: Site, tmp_path: Path) -> None:
    """The editor sees the variables of the program there, and lets it go on to its end."""
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "debugpy", "--listen", f"127.0.0.1:{port}", "--wait-for-client", str(program)]
    client = running_queue.client
    job = client.jobs.submit(command, mem="1M", env={}, time_limit="5m")
    running_queue.until_state(job.id, JobState.RUNNING)
    reported: list[str] = []
    report: Callable[[Exception], None] = lambda error: reported.append(str(error))  # noqa: E731 - in one line
    with client.jobs.forward(job.id, port, report=report) as local:
        editor = until(lambda: _attached(local.port), what=f"the debugger, and not {reported}")
        assert editor is not None
        attaching = editor.channel.send_request("attach", {"justMyCode": True})
        editor.waits_for("initialized")
        breakpoints = {"source": {"path": str(program)}, "breakpoints": [{"line": 4, "condition": "number == 3"}]}
        assert editor.channel.request("setBreakpoints", breakpoints)["breakpoints"][0]["verified"]
        editor.channel.request("configurationDone")
        attaching.wait_for_response()

        thread = editor.waits_for("stopped")["threadId"]
        frame = editor.channel.request("stackTrace", {"threadId": thread})["stackFrames"][0]
        scopes = editor.channel.request("scopes", {"frameId": frame["id"]})["scopes"]
        reference = {"variablesReference": scopes[0]["variablesReference"]}
        variables = editor.channel.request("variables", reference)["variables"]
        assert ("step", {"number": "3", "square": "9"}) == (
            frame["name"],
            {each["name"]: each["value"] for each in variables if each["name"] in {"number", "square"}},
        )
        editor.channel.request("continue", {"threadId": thread})
        editor.waits_for("terminated")
        editor.close()
    assert running_queue.until_state(job.id, JobState.SUCCEEDED).state.is_end
    assert b"total 14\n" in client.logs.end(client.jobs.newest(job.id), 1000)


def _attached(port: int) -> Editor | None:
    """Return an editor at *port*, None if the debugger does not listen yet."""
    editor = Editor(port)
    try:
        editor.channel.request("initialize", {"clientID": "test", "adapterID": "debugpy", "pathFormat": "path"})
    except (messaging.NoMoreMessages, messaging.MessageHandlingError, OSError):
        editor.close()
        return None
    return editor
