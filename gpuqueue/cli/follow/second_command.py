"""Passes input and output between this process and a second command in a job."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from typing import TYPE_CHECKING

from gpuqueue.cli.follow.attach import Shown
from gpuqueue.cli.follow.terminal import STDIN, EscapeDetector, raw, reported
from gpuqueue.console import LEFT, print_message
from gpuqueue.errors import GpuQueueError
from gpuqueue.model.terminal_size import Window

if TYPE_CHECKING:
    from gpuqueue.client.second_command import JobCommand

#: Most bytes of one read from standard input. One frame holds them.
CHUNK_BYTES = 32768


def shown(command: JobCommand, job_id: str, *, has_terminal: bool) -> int:
    """Send this process's input to *command* and show its output. Return its exit code."""
    output, resized = Shown(), os.pipe()
    os.set_blocking(resized[1], False)
    sender = Sender(command, resized[0], has_terminal=has_terminal)
    threading.Thread(target=sender.run, name="input", daemon=True).start()
    try:
        with contextlib.ExitStack() as terminal:
            if has_terminal:
                terminal.enter_context(raw())
                terminal.enter_context(reported(signal.SIGWINCH, resized[1]))
            for chunk, is_error in command.output():
                output.put(chunk, err=is_error)
    except GpuQueueError:
        if sender.trouble is not None:
            raise sender.trouble from None
        if not sender.has_left:
            raise
    finally:
        command.close()
        output.finish()
    if sender.has_left:
        print_message("gpuqueue", f"you left the command in job {job_id}, and it was ended")
        return LEFT
    status = command.status or 0
    if command.run_has_ended:
        print_message("gpuqueue", f"job {job_id} has ended, and the command in it with it")
    return status if status >= 0 else 128 - status


class Sender:
    """Sends the standard input of this process, and the size of its terminal when something arrives at *resized*."""

    def __init__(self, command: JobCommand, resized: int, *, has_terminal: bool) -> None:
        self._command, self._resized, self._has_terminal = command, resized, has_terminal
        #: Why the input cannot be sent any more, and whether the user has left.
        self.trouble: GpuQueueError | None = None
        self.has_left = False

    def run(self) -> None:
        """Send the input until its end, or until the command has ended. Runs in a thread of its own."""
        try:
            self._send()
        except GpuQueueError as error:
            if self._command.status is None:
                self.trouble = error
                self._command.close()

    def _send(self) -> None:
        escape, sources = EscapeDetector(), [STDIN, self._resized]
        while True:
            ready, _, _ = select.select(sources, [], [])
            if self._resized in ready:
                os.read(self._resized, CHUNK_BYTES)
                self._command.resize(Window.ours())
            if STDIN not in ready:
                continue
            try:
                typed = os.read(STDIN, CHUNK_BYTES)
            except OSError:  # it is closed, or its terminal is gone
                typed = b""
            is_leaving = False
            ended = not typed
            if self._has_terminal:
                typed, is_leaving = escape.take(typed)
            if typed:
                self._command.type(typed)
            if is_leaving or (ended and self._has_terminal):
                self.has_left = True
                self._command.close()
                return
            if ended:
                self._command.end_input()
                sources.remove(STDIN)
