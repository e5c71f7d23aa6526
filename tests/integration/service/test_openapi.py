"""The OpenAPI document in the reference is that of the code, and describes the API."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from service_fixtures import ServedSite

from gpuqueue.service.app import openapi

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "openapi.json"


def _references(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*map(_references, value.values()))
    return set().union(*map(_references, value)) if isinstance(value, list) else set()


def test_the_document_in_the_reference_is_that_of_the_code() -> None:
    """``docs/reference/generate.py`` was run after the last change of the API."""
    assert openapi() == json.loads(PAGE.read_text())


def test_each_name_in_the_document_is_explained() -> None:
    """Each reference leads to a schema, each operation has a summary, an id of its own and typed answers."""
    document = json.loads(PAGE.read_text())
    schemas = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    operations = [each for path in document["paths"].values() for each in path.values()]

    assert set() == _references(document) - schemas
    assert len(operations) == len({each["operationId"] for each in operations})
    for operation in operations:
        assert operation["description"]
        assert "application/problem+json" in operation["responses"]["default"]["content"]


def test_the_service_describes_itself(served: ServedSite) -> None:
    """A service gives the same document."""
    with served.client("unix") as client:
        assert client._link is not None
        content, _ = client._link.answered("GET", "/openapi.json", kind=bytes)

    assert json.loads(content) == json.loads(PAGE.read_text())
