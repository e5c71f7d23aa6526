"""The ``estimate`` command with a real history and a real torch."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from factories import BOB, make_spec
from outbox import Outbox, facts
from site_of_one import Site
from torch_scripts import NETWORK, NETWORK_PARAMETERS

from gpuqueue.codec.request import encode_ended
from gpuqueue.model.device import Peak, PeakSource
from gpuqueue.model.event import Act
from gpuqueue.model.job import JobState
from gpuqueue.model.job_spec import Account
from gpuqueue.model.run import Ending
from gpuqueue.system.account import current_account
from gpuqueue.text.units import MIB, format_bytes, parse_bytes

#: Read at import, because the tests clear the environment.
IN_CI = bool(os.environ.get("CI"))


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """Return a script for the real torch. Skip the test if torch is not installed, but fail in CI."""
    if importlib.util.find_spec("torch") is None:
        if IN_CI:
            pytest.fail("CI must make dry runs, and there is no torch")
        pytest.skip("torch is not installed here")
    path = tmp_path / "network.py"
    path.write_text(NETWORK)
    return path


def remember(site: Site, path: Path, *sizes: int, account: Account | None = None) -> None:
    """Record runs of the script at *path* with these peaks, without arguments."""
    site.make_tables()
    outbox = Outbox(site.client.database)
    for job_id, size in enumerate(sizes, start=1):
        spec = make_spec(
            argv=(sys.executable, path.name),
            script=path.name,
            interpreter=sys.executable,
            cwd=str(path.parent),
            account=account or current_account("h"),
        )
        outbox.submit(job_id, spec)
        outbox.claim(job_id)
        outbox.started(job_id)
        peak = Peak(bytes=size, source=PeakSource.NVML_SAMPLED, samples=100)
        ended = encode_ended(ending=Ending.from_status(0), duration_s=9.0, devices=facts("GPU-0", peak))
        outbox.report(job_id, Act.FINISH, JobState.SUCCEEDED, token="1.a", ended=ended)
    outbox.record()


def formula_value(line: str) -> float:
    """Return what the terms of a formula line add up to, in bytes."""
    terms = re.fullmatch(
        r"formula: \(([\d.]+) x (\S+) parameters \+ (\S+) .*\) x ([\d.]+) \+ (\S+) CUDA .* = \S+", line
    )
    assert terms is not None, line
    parameters, rest, context = (parse_bytes(terms[group]) for group in (2, 3, 5))
    return (float(terms[1]) * parameters + rest) * float(terms[4]) + context


@pytest.mark.full
def test_history_answers_and_nothing_is_run(site: Site, tmp_path: Path) -> None:
    """If the history has runs of the script, it is neither run nor read. This script would fail."""
    path = tmp_path / "train.py"
    path.write_text("raise SystemExit('it was run')")
    remember(site, path, 600 * MIB, 400 * MIB)

    reported = site.cli("estimate", str(path)).stdout
    plain = json.loads(site.cli("estimate", str(path), "--history-only", "--json").stdout)

    assert "runs of this file by you" in reported
    assert reported.endswith("ask for  --mem 960M\n")
    assert ("arguments", [2, 1], None) == (
        plain["past"]["lesson"]["signature"],
        [run["job_id"] for run in plain["past"]["runs"]],
        plain["dry_run"],
    )
    assert math.ceil(600 * MIB * 1.1) + 256 * MIB == plain["need_bytes"]
    learned = site.cli("submit", "--mem", "auto", str(path)).stderr
    assert "gpuqueue: asking 960M: the last 2 runs peaked at 400M to 600M" in learned  # the two agree


@pytest.mark.full
def test_runs_of_others_help_where_there_are_none_of_ones_own(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without own runs, recent runs of the same file by other users count."""
    path = tmp_path / "train.py"
    path.write_text("")
    now = datetime.now(timezone.utc)
    monkeypatch.setattr("outbox.T0", now - timedelta(days=1))
    remember(site, path, 600 * MIB, account=BOB)

    plain = json.loads(site.cli("estimate", str(path), "--json", "--history-only").stdout)

    assert ("anybody", "arguments") == (plain["past"]["whose"], plain["past"]["lesson"]["signature"])


@pytest.mark.full
@pytest.mark.parametrize("words", [(), ("--json",)])
def test_a_history_that_has_no_answer_is_no_success(site: Site, script: Path, words: tuple[str, ...]) -> None:
    """``--history-only`` without a result ends with 1. It used to be 0, and scripts went on without a figure."""
    site.make_tables()

    done = site.cli("estimate", str(script), "--history-only", *words, check=False)

    line = "the history knows no run of this script that shows its need on a GPU"
    assert (1, f"gpuqueue: {line}\n") == (done.returncode, done.stderr)
    assert [line] == (json.loads(done.stdout)["notes"] if words else [line])
    assert words or not done.stdout


@pytest.mark.full
def test_without_history_the_parts_of_a_dry_run_are_shown(site: Site, script: Path) -> None:
    """Without a history, the output shows the parts, formula and limits of a dry run, and a ``--mem`` value."""
    site.make_tables()

    reported = site.cli("estimate", str(script), "--python", sys.executable, "--", "--optimizer", "Adam").stdout

    assert "note: the history knows no run of this script that shows its need on a GPU" in reported
    assert "optimizer states (Adam)" in reported
    assert "2 x parameters" in reported
    formula = next(line for line in reported.splitlines() if line.startswith("formula: "))
    assert f"(4 x {format_bytes(4 * NETWORK_PARAMETERS)} parameters + " in formula
    assert formula_value(formula) == pytest.approx(parse_bytes(formula.rpartition(" = ")[2]), rel=0.01)
    assert ["needs", formula.rpartition(" = ")[2]] in [line.split() for line in reported.splitlines()]
    assert "10 % are added for fragmentation" in reported
    assert reported.endswith("ask for  --mem 640M\n")


@pytest.mark.full
def test_batches_are_compared(site: Site, script: Path) -> None:
    """Batch sizes are compared even if the history has a result, because the user asks for it. No history is needed."""
    done = site.cli("estimate", str(script), "--python", sys.executable, "--batch-sizes", "4,256", "--json")

    plain = json.loads(done.stdout)
    small, large = plain["batches"]
    assert [4, 256] == [small["size"], large["size"]]
    assert small["dry_run"]["peak_bytes"] < plain["dry_run"]["peak_bytes"] < large["dry_run"]["peak_bytes"]
    assert plain["notes"][0].startswith("the history could not be asked")


@pytest.mark.full
def test_a_script_that_fails_shows_its_own_end(site: Site, tmp_path: Path, script: Path) -> None:
    """A failing script gives its traceback and one line on stderr, no stdout, and exit code 1."""
    script.write_text("import torch\nopen('no-such-data')\n")

    done = site.cli("estimate", str(script), "--python", sys.executable, "--no-history", check=False)

    assert (1, "") == (done.returncode, done.stdout)
    *trace, last = done.stderr.splitlines()
    assert trace[-1].endswith("FileNotFoundError: [Errno 2] No such file or directory: 'no-such-data'")
    assert last == "gpuqueue: network.py failed in the dry run; it is not measured"
    assert ["network.py"] == [each.name for each in tmp_path.iterdir() if each.is_file()]


@pytest.mark.parametrize(
    ("words", "code", "printed"),
    [
        (("missing.py",), 2, "no such file: missing.py"),
        (("/bin/true",), 2, "/bin/true is no .py file"),
        (("job.py", "--batch-sizes", "1,x"), 2, "write numbers with commas"),
        (("job.py", "--batch-sizes", "0"), 2, "numbers from 1 up"),
        (("job.py", "--history-only", "--dry-run"), 2, "choose one"),
        (("job.py", "--timeout", "5"), 2, "add the unit"),
        (("job.py", "--python", "no-python"), 2, "no such interpreter: no-python"),
        (("job.py", "--history-only"), 4, "is not there yet"),
        (("job.py", "--no-history", "--timeout", "0.2s", "--python", sys.executable), 124, "made no step"),
    ],
)
def test_what_goes_wrong_is_one_line(
    site: Site, tmp_path: Path, words: tuple[str, ...], code: int, printed: str
) -> None:
    """Each error is one line with a documented exit code."""
    (tmp_path / "job.py").write_text("import signal; signal.pause()")
    given = [str(tmp_path / word) if word == "job.py" else word for word in words]

    done = site.cli("estimate", *given, check=False)

    assert (code, "", 1) == (done.returncode, done.stdout, len(done.stderr.splitlines()))
    assert printed in done.stderr
