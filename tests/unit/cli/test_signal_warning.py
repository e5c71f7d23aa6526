"""Tests of the warning that the first process of a job passes the signal before its time limit on to none."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from factories import make_spec

from gpuqueue.cli.output.warnings import warn_if_signal_is_lost
from gpuqueue.model.job_spec import EarlySignal

SHELL = "ends by it and passes it on to no other process: put exec before its last command, or catch it with trap"
TORCHRUN = "torchrun ends by it and passes it on to no other process: use TERM, which it passes on"


@pytest.mark.parametrize(
    ("command", "number", "words"),
    [
        (("sh", "-c", "python train.py; echo after"), signal.SIGUSR1, f"sh {SHELL}"),
        (("/bin/bash", "-eu", "-o", "pipefail", "-c", "python train.py > log"), signal.SIGTERM, f"bash {SHELL}"),
        (("bash", "-c", "time python train.py"), signal.SIGUSR1, f"bash {SHELL}"),
        (("bash", "-c", "(python train.py)"), signal.SIGUSR1, f"bash {SHELL}"),
        (("fish", "-c", "python train.py"), signal.SIGUSR1, f"fish {SHELL}"),
        (("./plain.sh",), signal.SIGUSR1, f"plain.sh {SHELL}"),
        (("bash", "plain.sh", "-c", "exec"), signal.SIGUSR1, f"bash {SHELL}"),
        (("bash", "gone.sh"), signal.SIGUSR1, f"bash {SHELL}"),
        (("torchrun", "train.py"), signal.SIGUSR1, TORCHRUN),
        (("python", "-m", "torch.distributed.run", "train.py"), signal.SIGUSR2, TORCHRUN),
        (("torchrun", "train.py"), signal.SIGTERM, None),
        (("bash", "-lc", "exec python train.py"), signal.SIGUSR1, None),
        (("bash", "-eu", "-o", "pipefail", "-c", " python train.py --lr 1\n"), signal.SIGUSR1, None),
        (("bash", "-c", "python train.py --out ${HOME}/$(date +%F) --note 'a; b'"), signal.SIGUSR1, None),
        (("zsh", "-c", "python train.py"), signal.SIGUSR1, None),
        (("sh", "-c", "trap 'kill $p' USR1; python train.py & p=$!; wait"), signal.SIGUSR1, None),
        (("./execs.sh",), signal.SIGUSR1, None),
        (("bash", "-e", "execs.sh", "--lr", "1"), signal.SIGUSR1, None),
        (("python", "train.py"), signal.SIGUSR1, None),
        (("sh", "-c", "python train.py; echo after"), None, None),
    ],
)
def test_a_signal_that_reaches_nobody_is_said_at_the_submit(
    command: tuple[str, ...],
    number: int | None,
    words: str | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The queue killed the shell of such a job before its time limit, and the training saved nothing."""
    (tmp_path / "plain.sh").write_text("#!/bin/sh\npython train.py\necho after\n")
    (tmp_path / "execs.sh").write_text("#!/bin/sh\nmodule load cuda\nexec python train.py\n")
    early = None if number is None else EarlySignal(number=number, before_s=60.0)
    spec = make_spec(argv=command, cwd=str(tmp_path), time_limit_s=3600.0, signal=early)

    warn_if_signal_is_lost(spec)

    begin = "" if number is None else f"only the first process gets the {signal.Signals(number).name} of --signal"
    assert ("" if words is None else f"gpuqueue: warning: {begin}: {words}\n") == capsys.readouterr().err


@pytest.mark.parametrize(("installed", "words"), [("/usr/bin/dash", f"sh {SHELL}"), ("/usr/bin/bash", "")])
def test_sh_is_the_shell_that_the_system_has_for_it(
    installed: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bash starts a single command in its own place, and Debian's dash stays."""
    monkeypatch.setattr(os.path, "realpath", lambda _path: installed)
    early = EarlySignal(number=signal.SIGUSR1, before_s=60.0)

    warn_if_signal_is_lost(make_spec(argv=("sh", "-c", "python train.py"), time_limit_s=3600.0, signal=early))

    assert words in capsys.readouterr().err if words else not capsys.readouterr().err
