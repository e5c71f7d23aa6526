"""The filters of the queue are the fields of one class."""

from __future__ import annotations

import inspect
import json
from dataclasses import fields
from pathlib import Path

from gpuqueue.model.job import JobState
from gpuqueue.model.queue_query import QueueQuery

OPENAPI = Path(__file__).resolve().parents[3] / "docs" / "reference" / "openapi.json"


def test_each_field_is_an_argument_and_a_parameter() -> None:
    """A new field could not be asked for otherwise, here or over the service."""
    described = json.loads(OPENAPI.read_text())["paths"]["/api/v1/jobs"]["get"]["parameters"]
    names = {each.name for each in fields(QueueQuery)}

    assert names == {*inspect.signature(QueueQuery.of).parameters}
    assert names - {"states", "tags"} | {"state", "tag"} == {each["name"] for each in described}


def test_the_filters_are_sent_and_the_page_is_not() -> None:
    """The client asks for one page after the other by itself."""
    query = QueueQuery.of(user="ada", states=["held"], tags=["b", "a"], limit=5, after=7)

    expected = {"user": "ada", "state": (JobState.HELD,), "name": None, "tag": query.tags, "pool": None}
    assert expected == query.parameters()
