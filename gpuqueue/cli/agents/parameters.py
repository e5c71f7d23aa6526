"""The parameters of the tools as JSON schemas, from the functions and values of the Python API that the tools call."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

Schema = dict[str, Any]

_SCALARS = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}
_EMPTY = inspect.Parameter.empty
#: A parameter in a docstring, with its further lines.
_DESCRIBED = re.compile(r"^    (\w+): (.+(?:\n {8,}.+)*)", re.MULTILINE)


def parameters_of(call: Callable[..., Any], *, without: Collection[str] = (), **bounds: Schema) -> Schema:
    """Return the schema of the arguments that *call* takes, less those *without*.

    What has no form in JSON is left out: a value of a class of ours also has a form as text. *bounds* are added to the
    schema of a parameter.
    """
    described, types, properties, required = _described(call), call.__annotations__, {}, []
    for name, parameter in inspect.signature(call).parameters.items():
        annotation = types.get(name, parameter.annotation)
        kinds = [*_kinds(ast.parse(annotation, mode="eval").body)] if isinstance(annotation, str) else []
        if name in {"self", *without} or not kinds:
            continue
        schema: Schema = kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
        if name in described:
            schema["description"] = described[name]
        if parameter.default is _EMPTY:
            required.append(name)
        elif isinstance(parameter.default, (str, int, float)):
            schema["default"] = parameter.default
        properties[name] = {**schema, **bounds.get(name, {})}
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _kinds(annotation: ast.expr) -> Iterator[Schema]:
    """Yield the schemas of the types in an annotation that have a form in JSON."""
    if isinstance(annotation, ast.BinOp):  # one | other
        yield from _kinds(annotation.left)
        yield from _kinds(annotation.right)
    elif isinstance(annotation, ast.Name) and annotation.id in _SCALARS:
        yield {"type": _SCALARS[annotation.id]}
    elif isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Sequence":
        items = [*_kinds(annotation.slice)]
        yield {"type": "array", "items": items[0] if len(items) == 1 else {"anyOf": items}}
    elif ast.unparse(annotation) == "Mapping[str, str]":
        yield {"type": "object", "additionalProperties": {"type": "string"}}


def _described(call: Callable[..., Any]) -> Mapping[str, str]:
    """Return the texts on the parameters in the docstring of *call*."""
    _, _, below = inspect.cleandoc(call.__doc__ or "").partition("\nArgs:\n")
    if not below:
        _, _, below = inspect.cleandoc(call.__doc__ or "").partition("\nAttributes:\n")
    section = re.split(r"\n(?=\S)", below)[0]
    return {name: " ".join(text.split()).replace("``", "`") for name, text in _DESCRIBED.findall(section)}
