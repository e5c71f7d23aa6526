"""The criteria of a search are the fields of one class; all other forms of them follow it."""

from __future__ import annotations

import inspect
import json
from dataclasses import fields
from datetime import datetime, timezone
from pathlib import Path

import pytest

from gpuqueue.errors import BadRequest
from gpuqueue.model.history_query import ARGUMENTS, PARAMETERS, HistoryQuery, Sort
from gpuqueue.model.job import JobState
from gpuqueue.model.job_spec import Account
from gpuqueue.text.units import GIB

OPENAPI = Path(__file__).resolve().parents[3] / "docs" / "reference" / "openapi.json"
#: The fields that a caller sets. The service sets the owner, by who the caller is.
FIELDS = [each.name for each in fields(HistoryQuery) if each.name != "owner"]


def test_each_field_is_an_argument_of_a_search() -> None:
    """A new field without an argument could not be asked for."""
    expected = [ARGUMENTS.get(name, name) for name in FIELDS]

    assert expected == [*inspect.signature(HistoryQuery.of).parameters]


@pytest.mark.parametrize(
    ("path", "missing"),
    [("/history", {"owner"}), ("/history/folded", {"array", "metric"}), ("/history/csv", {"limit"})],
)
def test_each_field_is_a_parameter_of_the_api(path: str, missing: set[str]) -> None:
    """The service makes its parameters of the fields, so its document names them all."""
    described = json.loads(OPENAPI.read_text())["paths"][f"/api/v1{path}"]["get"]["parameters"]

    assert {PARAMETERS.get(name, name) for name in FIELDS} - missing == {each["name"] for each in described} - {
        "download"
    }


def test_a_query_is_sent_as_its_parameters() -> None:
    """What a person gives is read once, and what is not set is left out."""
    query = HistoryQuery.of(states=["failed"], array=17, min_peak="2G", since="2026-11-01T00:00Z", sort="peak")

    expected = {
        "state": (JobState.FAILED,),
        "array": 17,
        "min_peak_bytes": 2 * GIB,
        "since": datetime(2026, 11, 1, tzinfo=timezone.utc),
        "sort": Sort.PEAK,
        "reverse": False,
        "limit": 50,
    }
    assert expected == query.parameters()


def test_an_owner_is_no_parameter() -> None:
    """A client that named an owner would get the jobs of everybody else as well."""
    with pytest.raises(BadRequest, match="not those of an owner"):
        HistoryQuery(owner=Account(name="ada", uid=1000, host="here")).parameters()


@pytest.mark.parametrize(
    ("criteria", "message"),
    [({"sort": "peak"}, "of ids or of ends only"), ({"array": 17}, "members of one array are not folded")],
)
def test_what_cannot_be_folded_is_refused(criteria: dict[str, str], message: str) -> None:
    """Rows of arrays have one order, and the members of one array are no rows."""
    with pytest.raises(BadRequest, match=message):
        HistoryQuery.of(**criteria).must_fold()  # type: ignore[arg-type] # both kinds of values
