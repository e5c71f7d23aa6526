"""Words that users type by habit or by mistake: each is understood, or answered with the word that is meant."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest
from spoken import speak

from gpuqueue.client import Client
from gpuqueue.errors import BadRequest
from gpuqueue.model import times
from gpuqueue.model.retries import RetryOn
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.system.account import current_account

ME = current_account("laptop")
ARRAY = ["submit", "--mem", "1G", "--array", "0-3", "--"]
SWEEP = ["submit", "--mem", "1G", "--sweep", "lr=1,2", "--"]


def test_times_in_words() -> None:
    """``yesterday`` and ``today`` begin at midnight; ``tomorrow`` and ``3am`` are the next ones."""
    midnight = datetime.now().astimezone().replace(hour=0, minute=0, second=0, microsecond=0)
    assert midnight == times.moment("since", "today")
    yesterday = datetime.combine(midnight.date() - timedelta(days=1), datetime.min.time()).astimezone()
    assert yesterday == times.moment("since", "yesterday")
    noon = datetime(2026, 11, 20, 12).astimezone()
    day = timedelta(days=1)
    for text, then in {
        "tomorrow": noon + day / 2,
        "3am": noon + timedelta(hours=15),
        "3PM": noon + timedelta(hours=3),
        "3:30 pm": noon + timedelta(hours=3.5),
        "12am": noon + day / 2,
        "12pm": noon + day,
        "tomorrow 3am": noon + timedelta(hours=15),
        "tomorrow 15:00": noon + timedelta(hours=27),
    }.items():
        assert then == times.begin(text, now=noon), text
    for text in ("13am", "0pm", "tomorrow 2h", "3:99am", "tomorrowish"):
        with pytest.raises(BadRequest, match="is no time to begin"):
            times.begin(text, now=noon)


def test_oom_is_an_ending_to_retry_after(here: JobQueue) -> None:
    """``oom`` means ``out_of_memory``, on the command line and in Python."""
    assert 0 == speak(["submit", "--mem", "1G", "--retries", "1", "--retry-on", "oom,lost", "--", "true"]).code
    with Client() as client:
        client.jobs.submit(["true"], mem="1G", retries=1, retry_on=["oom", "lost"])  # type: ignore[list-item]

    assert [(RetryOn.OUT_OF_MEMORY, RetryOn.LOST)] * 2 == [job.spec.retries.on for job in here.jobs.live()]


def test_a_sweep_is_used_in_an_argument_or_by_its_variable(here: JobQueue, tmp_path: Path) -> None:
    """The variable may stand in an argument or in a file that the command names. JSON and ``{{x}}`` stay."""
    script = tmp_path / "train.py"
    script.write_text("import os\nos.environ['GPUQUEUE_SWEEP_LR']\n")
    for words in (
        [*SWEEP, "sh", "-c", "echo $GPUQUEUE_SWEEP_LR"],
        [*SWEEP, "python", str(script)],
        ["submit", str(script), "--mem", "1G", "--sweep", "lr=1,2"],
        [*SWEEP, "t", '{"lr": 1}', "{}", "{0}", "${HOME}", "{{other}}", "{lr}-{index}", "{a b}"],
    ):
        assert 0 == speak(words).code, words
    last = here.jobs.live()[-1].spec
    assert last.array is not None
    assert "{other}" == last.array.fill("{{other}}", 0)


def test_python_is_held_to_the_same_rule(here: JobQueue, tmp_path: Path) -> None:
    """A submit from Python is refused in the same words."""
    (tmp_path / "t.py").touch()
    with Client() as client, pytest.raises(BadRequest, match="is no value of this array"):
        client.jobs.submit("t.py", ["{lr}", "{lrr}"], mem="1G", cwd=tmp_path, sweep={"lr": [1, 2]})
    assert [] == here.jobs.live()


def test_an_interpreter_is_found_from_here(here: JobQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``--python`` with a relative path is relative to the current directory, not to ``--cwd``."""
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "python").symlink_to("/bin/true")
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "t.py").touch()
    monkeypatch.chdir(tmp_path)

    output = speak(["submit", "t.py", "--mem", "1G", "--python", "venv/python", "--cwd", "there"])

    assert (0, "") == (output.code, output.stderr)
    spec = here.jobs.live()[0].spec
    assert (str(tmp_path / "venv" / "python"), "t.py") == spec.argv
    assert spec.argv[0] == spec.interpreter
