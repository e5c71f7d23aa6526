"""Reads a stream of events of the service, as any program in any language would."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gpuqueue.client import Client


class Event(NamedTuple):
    """One event; ``name`` is ``:`` for a comment."""

    name: str
    value: Any
    id: str | None


def events(client: Client, path: str, headers: Mapping[str, str] | None = None) -> Iterator[Event]:
    """Yield the events of the stream at *path*, comments among them."""
    assert client._link is not None
    fields: dict[str, str] = {}
    for line in client._link.stream(path, None, headers or {}):
        name, _, value = line.decode().partition(":")
        if name:
            fields[name] = value.strip()
        elif value:
            yield Event(":", value.strip(), None)
        elif fields:
            yield Event(fields["event"], json.loads(fields["data"]), fields.get("id"))
            fields = {}


def first(found: Iterator[Event], *names: str) -> Event:
    """Return the next event with one of *names*. Comments are skipped."""
    for each in found:
        if each.name in names:
            return each
        assert each.name == ":", each
    raise AssertionError(f"the stream ended before {' or '.join(names)}")
