"""What ``gpuqueue-worker launcher`` passes on to the launcher's process."""

from __future__ import annotations

import os

import pytest
from click.testing import CliRunner

from workers.cli import worker_commands


@pytest.mark.parametrize(
    ("words", "environ", "passed"),
    [
        ([], {}, []),
        (["--pam-service", "queue"], {}, ["--pam-service", "queue"]),
        (["--run-cpus", "2"], {"GPUQUEUE_RUN_CPUS": "1.5"}, ["--run-cpus", "2.0"]),
        (["--run-memory", "2M"], {"GPUQUEUE_RUN_CPUS": "1.5"}, ["--run-cpus", "1.5", "--run-memory-bytes", "2097152"]),
    ],
)
def test_options_and_variables_of_root_reach_the_launcher(
    monkeypatch: pytest.MonkeyPatch, words: list[str], environ: dict[str, str], passed: list[str]
) -> None:
    """An option goes before its variable, and nothing is passed on that root has not given."""
    commands: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _program, command: commands.append(command))

    done = CliRunner().invoke(worker_commands, ["launcher", *words], env=environ)

    assert (0, 1) == (done.exit_code, len(commands)), done.output
    given = commands[0][next(n for n, word in enumerate(commands[0]) if word.endswith("main.py")) + 1 :]
    defaults = {"--account", "--group", "--socket", "--runs", "--runs-group"}
    pairs = [(given[each], given[each + 1]) for each in range(0, len(given), 2)]
    assert passed == [word for name, value in sorted(pairs) if name not in defaults for word in (name, value)]
