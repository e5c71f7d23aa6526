"""What the service refuses in a form: the page marks its field, and the words name no option of the command line."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from factories import make_device, make_spec

from gpuqueue.errors import BadRequest, GpuQueueError
from gpuqueue.model.page import JobForm
from gpuqueue.queue.refusals import beyond_limit, why_impossible
from gpuqueue.service.web.job_form import new_job_of, retry_of
from gpuqueue.text.units import GIB

HERE = Path(__file__).parent
FORM = JobForm(script="train.py", snapshot="0" * 64, mem="6G", python="python3")


def of_page(messages: list[str]) -> list[str | None]:
    """Return the fields that *messages* are about, as the page finds them."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no Node.js to run the page's modules with")
    done = subprocess.run(
        [node, HERE / "faults_of_the_page.mjs"],
        input=json.dumps(messages),
        capture_output=True,
        text=True,
        check=True,
    )
    found: list[str | None] = json.loads(done.stdout)
    return found


def message_of(work: Callable[[], object]) -> str:
    """Return the message with which *work* is refused."""
    with pytest.raises(GpuQueueError) as refused:
        work()
    return str(refused.value)


def refused(**typed: Any) -> str:
    """Return the message about a form with what was *typed*."""

    def work() -> None:
        new = new_job_of(replace(FORM, **typed), tuple)
        make_spec(mem_bytes=new.mem_bytes, gpus=new.gpus, time_limit_s=new.time_limit_s)

    return message_of(work)


def limit(measure: str, most: int, asked: int) -> str:
    """Return the message about a limit of a pool."""
    return str(
        beyond_limit(
            make_spec(pool="big"),
            {"whose": "pool", "measure": measure, "used": "0", "most": str(most), "asked": str(asked)},
        )
    )


def test_each_refusal_marks_its_field() -> None:
    """The messages are those of the service."""
    big = make_spec(mem_bytes=90 * GIB)
    cases = (
        ("mem", refused(mem="abc")),
        ("mem", refused(mem="20")),
        ("mem", message_of(lambda: retry_of(replace(FORM, mem=""), FORM))),
        ("mem", why_impossible(big, "memory", 79 * GIB)),
        ("mem", why_impossible(replace(big, gpus=2), "memory", 95 * GIB)),
        ("mem", limit("max_mem", 4 * GIB, 5 * GIB)),
        ("gpus", refused(gpus=99)),
        ("gpus", why_impossible(replace(big, gpus=2), "devices", 1)),
        ("gpus", limit("max_gpus", 1, 2)),
        ("time_limit", refused(time_limit="memory")),
        ("time_limit", limit("max_time", 1000, 2000)),
        ("time_limit", limit("max_time", 1000, 0)),
        ("pool", why_impossible(replace(big, pool="x"), "pool", 0)),
        ("pool", why_impossible(replace(big, pool="x"), "pool", 0, [(make_device("GPU-0"), "lab")])),
        ("name", refused(name="two\nlines")),
        ("priority", refused(priority="first")),
        ("args", refused(args="'open")),
        ("python", refused(python="python3", environment="torch")),
    )
    assert [field for field, _ in cases] == of_page([message for _, message in cases])
    assert [] == [message for _, message in cases if "--" in message]
    assert "no device is in pool x: the pools are lab: choose another pool, or none" in [each for _, each in cases]
    assert {field for field, _ in cases} <= {each.name for each in fields(JobForm)}


def test_all_faults_of_a_form_are_said_at_once() -> None:
    """Each for its field, so that the page marks all of them."""
    typed = {"mem": "abc", "time_limit": "soon", "tags": "a b:", "python": "python3", "environment": "torch"}
    with pytest.raises(BadRequest) as refused:
        new_job_of(replace(FORM, **typed), tuple)
    assert ["python", "mem", "time_limit", "tags"] == [field for field, _ in refused.value.faults]
    assert "; ".join(words for _, words in refused.value.faults) == str(refused.value)


def test_other_messages_mark_nothing() -> None:
    """They stay as they are, below the form."""
    assert [None] == of_page(["the store does not answer"])
