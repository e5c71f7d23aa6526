"""JSON schemas of the API's values, from the same types by which :mod:`gpuqueue.codec.wire` reads and writes them."""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from enum import Enum, IntEnum
from typing import Any, Union

from gpuqueue.codec.wire import derived, hints, to_plain

Schema = dict[str, Any]

_SCALARS: Mapping[Any, Schema] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    type(None): {"type": "null"},
}
#: A name in a docstring, such as :class:`gpuqueue.model.job_spec.JobSpec`.
_REFERENCE = re.compile(r":[a-z]+:`~?(?:[\w.]*\.)?(\w+)`")


class Schemas:
    """The schemas of named types, which others refer to."""

    def __init__(self) -> None:
        self.named: dict[str, Schema] = {}

    def of(self, kind: Any) -> Schema:  # noqa: PLR0911 - one for each kind of type
        """Return the schema of *kind*; the named types in it are added to ``named``."""
        origin, args = typing.get_origin(kind), typing.get_args(kind)
        if kind is Any or kind is object:
            return {}
        if kind in _SCALARS:
            return dict(_SCALARS[kind])
        if origin in {Union, types.UnionType}:
            return {"anyOf": [self.of(each) for each in args]}
        if origin is tuple and not (len(args) == 2 and args[1] is Ellipsis):  # noqa: PLR2004 - X, ...
            items = [self.of(each) for each in args]
            return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
        if origin in {tuple, list, frozenset, Sequence, Collection, Iterable}:
            return {"type": "array", "items": self.of(args[0])}
        if origin in {dict, Mapping}:
            return {"type": "object", "additionalProperties": self.of(args[1])}
        return self._class(kind)

    def _class(self, kind: type) -> Schema:
        if issubclass(kind, datetime):
            return {"type": "string", "format": "date-time"}
        if hasattr(kind, "AS_TEXT"):
            return {"type": "string", "description": kind.AS_TEXT}
        name = kind.__name__
        if name not in self.named:
            self.named[name] = {}  # a type may refer to itself
            self.named[name] = self._enumeration(kind) if issubclass(kind, Enum) else self._object(kind)
        return {"$ref": f"#/components/schemas/{name}"}

    def _enumeration(self, kind: type[Enum]) -> Schema:
        values = [str(each) if issubclass(kind, IntEnum) else each.value for each in kind]
        return {"type": "string", "enum": values, "description": first_line(kind)}

    def _object(self, kind: Any) -> Schema:
        properties, required = {}, []
        known = hints(kind)
        for field in dataclasses.fields(kind):
            schema = self.of(known[field.name])
            if field.default is not dataclasses.MISSING and "$ref" not in schema:
                schema["default"] = to_plain(field.default)
            if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
                required.append(field.name)
            properties[field.name] = schema
        for name, hint in derived(kind).items():
            properties[name] = {**self.of(hint), "readOnly": True, "description": first_line(getattr(kind, name))}
        made: Schema = {"type": "object", "description": _described(kind), "properties": properties}
        return {**made, "required": required} if required else made


def _described(kind: Any) -> str:
    """Return a docstring with the bare names of what it refers to."""
    return _REFERENCE.sub(r"``\1``", inspect.getdoc(kind) or "")


def first_line(kind: Any) -> str:
    """Return the first line of a docstring."""
    return (inspect.getdoc(kind) or "").partition("\n")[0]
