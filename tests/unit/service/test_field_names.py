"""Errors of the API: options become the fields of the body that the caller has sent."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from gpuqueue.model.api import NewJob, RetryRequest
from gpuqueue.model.job_request import JobEdit, JobRequest
from gpuqueue.model.page import JobForm
from gpuqueue.service.field_names import in_fields, named_in

PACKAGE = Path(__file__).parents[3] / "gpuqueue"


@pytest.mark.parametrize(
    ("kind", "text", "shown"),
    [
        (NewJob, "leave out --retries or --no-requeue", "leave out retries or requeue"),
        (NewJob, "give one (--time), or --mem", "give one (time_limit_s), or mem_bytes"),
        (NewJob, "--after 5:corr needs --array", "waits.after 5:corr needs array"),
        (JobEdit, "give one (--time), or --mem", "give one (time_limit), or mem"),
        (RetryRequest, "leave out --python or --mem", "leave out python or changes.mem"),
        (JobForm, "--python and --cpu-mem", "python and cpu_mem"),
        (tuple[NewJob, ...], "leave out --mem-retries", "leave out retries.mem_times"),
        (None, "--until must be later than --since", "until must be later than since"),
        (NewJob, "'--mem' is no name", "'--mem' is no name"),
        (JobEdit, "repair it: gpuqueue edit 5 --mem 8G, or --mem", "repair it: gpuqueue edit 5 --mem 8G, or mem"),
        (NewJob, "put a command after --", "put a command after --"),
    ],
)
def test_an_option_is_named_as_the_body_has_it(kind: Any, text: str, shown: str) -> None:
    assert shown == in_fields(kind)(text)


def test_a_field_of_a_job_has_the_name_of_the_body() -> None:
    names = [named_in(kind, "mem_bytes") for kind in (NewJob, JobEdit, RetryRequest, JobForm, None)]
    assert ["mem_bytes", "mem", "changes.mem", "mem", "mem_bytes"] == names
    assert ("args", "waits.after[0]") == (named_in(JobForm, "argv"), named_in(NewJob, "waits.after[0]"))


def test_each_option_of_a_refusal_has_a_field() -> None:
    """Those that the values of a job name, so that no answer about a new job names an option."""
    known = {each.name for each in fields(NewJob)} | {each.name for each in fields(JobRequest)}
    texts = [path.read_text() for path in (PACKAGE / "model").glob("*.py")]
    options = {each for text in texts for each in re.findall(r"BadRequest\([^)]*?(--[a-z][a-z-]+)", text)}
    wrong = {each: name for each in options if (name := in_fields(NewJob)(each)).partition(".")[0] not in known}
    assert {"--since", "--until", "--max-duration", "--min-duration"} >= {*wrong}, "of the history, or without a field"
