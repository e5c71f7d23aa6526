"""What ``gpuqueue-worker launcher`` passes on to the launcher's process, and how that accepts connections."""

from __future__ import annotations

import errno
import gc
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from workers.cli import worker_commands
from workers.launcher import main
from workers.launcher.account import Rules


@pytest.mark.parametrize(
    ("words", "environ", "passed"),
    [
        ([], {}, {}),
        (["--pam-service", "queue"], {}, {"pam_service": "queue"}),
        (["--run-cpus", "2"], {"GPUQUEUE_RUN_CPUS": "1.5"}, {"run_cpus": 2.0}),
        (["--run-memory", "2M"], {"GPUQUEUE_RUN_CPUS": "1.5"}, {"run_cpus": 1.5, "run_memory_bytes": 2097152}),
        (["--allow-setuid"], {"GPUQUEUE_REMOVE_SHARED_MEMORY": "false"}, {"allow_setuid": True}),
        ([], {"GPUQUEUE_REMOVE_SHARED_MEMORY": "true"}, {"remove_shared_memory": True}),
    ],
)
def test_options_and_variables_of_root_reach_the_launcher(
    monkeypatch: pytest.MonkeyPatch, words: list[str], environ: dict[str, str], passed: dict[str, Any]
) -> None:
    """An option goes before its variable, and nothing is passed on that root has not given."""
    commands: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _program, command: commands.append(command))

    done = CliRunner().invoke(worker_commands, ["launcher", *words], env=environ)

    assert (0, 1) == (done.exit_code, len(commands)), done.output
    given = commands[0][next(n for n, word in enumerate(commands[0]) if word.endswith("main.py")) + 1 :]
    defaults = {"account", "group", "socket", "runs", "runs_group"}
    options = vars(main.parser().parse_args(given)).items()
    assert passed == {name: value for name, value in options if name not in defaults and value not in {None, False}}


def test_a_host_without_file_descriptors_does_not_end_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """It tries again after a pause. Its end would start no job on this host until somebody starts it."""

    class Listener:
        answers: Iterator[BaseException] = iter((OSError(errno.ENFILE, "full"), OSError(errno.EMFILE, "full")))

        def accept(self) -> None:
            raise next(self.answers, KeyboardInterrupt())

    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(gc, "freeze", lambda: None)

    with pytest.raises(KeyboardInterrupt):
        main.serve(Listener(), Rules(0, "lab", 1000, "/runs"))  # type: ignore[arg-type]

    assert [main.FULL_S] * 2 == pauses
