"""Values of the HTTP API as JSON, and back. The types of a dataclass's fields say how each field is written and read.

Both ends of the API use this module: the service, and the client of the command line, which may import nothing slow.
:mod:`gpuqueue.service.schema` derives the OpenAPI document from the same types. A field of an object has the name of
the dataclass's field. Times are ISO 8601 texts, priorities their names, and the indexes of arrays texts such as
``0-99``. Texts that are not valid UTF-8 become escaped surrogates, as in all payloads of gpuqueue.

Requests are read strictly: an unknown field is an error. Answers may have fields that this version does not know.
A class names in ``DERIVED`` the properties, all of them texts, that are written beside its fields and never read.
"""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from enum import Enum, IntEnum
from functools import lru_cache, partial
from importlib import import_module
from typing import Any, TypeVar, Union

from gpuqueue.codec.text import Plain
from gpuqueue.errors import BadRequest, Unreadable
from gpuqueue.model.array import Indexes
from gpuqueue.text.sanitize import brief

T = TypeVar("T")
#: Reads a plain value. The second argument is the path of the field, for messages: ``waits.after[0]``.
Read = Callable[[Any, str], Any]

_AS_THEY_ARE = frozenset({type(None), bool, int, float, str})
_SCALARS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
#: Modules of the types that fields name and that their modules import only for type checkers.
HOMES = {
    "Explanation": "gpuqueue.queue.explanation",
    "Preemption": "gpuqueue.queue.explanation",
    "Axis": "gpuqueue.model.sweep",
    "DeviceStatus": "gpuqueue.queue.lease",
    "DeviceFilter": "gpuqueue.model.device",
    "Dependency": "gpuqueue.model.dependencies",
    "EarlySignal": "gpuqueue.model.job_spec",
    "Preference": "gpuqueue.model.placement",
    "Priority": "gpuqueue.model.job_spec",
    "RetryOn": "gpuqueue.model.retries",
    "Record": "gpuqueue.model.run",
    "WhySentences": "gpuqueue.model.why_sentences",
    "datetime": "datetime",
}


def to_plain(value: Any) -> Any:
    """Return *value* as what ``json.dumps`` takes."""
    kind = type(value)
    if kind in _AS_THEY_ARE:
        return value
    return _writer(kind)(value)  # type: ignore[arg-type] # a class is hashable


@lru_cache(maxsize=256)
def _writer(kind: type) -> Callable[[Any], Any]:  # noqa: PLR0911 - one for each kind of type
    if issubclass(kind, IntEnum):
        return str
    if issubclass(kind, Enum):
        return lambda value: value.value
    if issubclass(kind, datetime):
        return datetime.isoformat
    if issubclass(kind, Indexes):
        return str
    if dataclasses.is_dataclass(kind):
        names = (*(field.name for field in dataclasses.fields(kind)), *getattr(kind, "DERIVED", ()))
        return lambda value: {name: to_plain(getattr(value, name)) for name in names}
    if issubclass(kind, Mapping):  # an environment has many texts, and a call for each takes time
        return lambda value: {
            str(key): each if type(each) in _AS_THEY_ARE else to_plain(each) for key, each in value.items()
        }
    if issubclass(kind, (set, frozenset)):
        return lambda value: sorted(map(to_plain, value), key=str)  # the order of a set differs in each process
    if issubclass(kind, (Sequence, Collection)):
        return lambda value: [to_plain(each) for each in value]
    return str


def from_request(kind: type[T], plain: object) -> T:
    """Return the *kind* that a request has.

    Raises:
        BadRequest: *plain* does not describe one, or has a field that *kind* does not have.

    """
    try:
        return typing.cast("T", reader(kind, strict=True)(plain, ""))  # type: ignore[arg-type] # as above
    except ValueError as error:
        raise BadRequest(str(error)) from None


def from_answer(kind: Any, plain: object) -> Any:
    """Return the *kind* that an answer of the service has.

    Raises:
        Unreadable: *plain* does not describe one.

    """
    try:
        return reader(kind, strict=False)(plain, "")
    except (ValueError, BadRequest) as error:
        raise Unreadable(f"the service's answer cannot be read: {error}") from None


class _Names(dict[str, Any]):
    """The names in the annotations of a module: its own, and those of HOMES."""

    def __missing__(self, name: str) -> Any:
        if name not in HOMES:
            raise KeyError(name)
        return getattr(import_module(HOMES[name]), name)


@lru_cache(maxsize=256)
def hints(kind: type) -> Mapping[str, Any]:
    """Return the types of the fields of a dataclass, by name."""
    names = _Names(vars(sys.modules[kind.__module__]))
    found = {}
    for field in dataclasses.fields(kind):
        found[field.name] = eval(str(field.type), {}, names)  # noqa: S307 - annotations of our own classes
    return found


@lru_cache(maxsize=1024)
def reader(kind: Any, *, strict: bool) -> Read:  # noqa: PLR0911 - one for each kind of type
    """Return the function that reads a value of the type *kind*."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any or kind is object:
        return lambda plain, _: plain
    if kind in _SCALARS:
        return partial(_scalar, kind)
    if origin in {Union, types.UnionType}:
        return _union(args, strict=strict)
    if origin is tuple and not (len(args) == 2 and args[1] is Ellipsis):  # noqa: PLR2004 - X, ...
        return partial(_fixed, tuple(reader(each, strict=strict) for each in args))
    if origin in {tuple, list, frozenset, Sequence, Collection, Iterable}:
        return partial(
            _several,
            frozenset if origin is frozenset else list if origin is list else tuple,
            reader(args[0], strict=strict),
        )
    if origin in {dict, Mapping}:
        return partial(_mapping, _key(args[0]), reader(args[1], strict=strict))
    if isinstance(kind, type):
        return _class(kind, strict=strict)
    raise TypeError(f"no JSON form is defined for {kind!r}")


def _class(kind: type, *, strict: bool) -> Read:
    if issubclass(kind, IntEnum):
        return partial(_word, {str(each): each for each in kind}, kind.__name__)
    if issubclass(kind, Enum):
        return partial(_word, {str(each.value): each for each in kind}, kind.__name__)
    if issubclass(kind, datetime):
        return _moment
    if issubclass(kind, Indexes):
        return lambda plain, where: Indexes.parse(_scalar(str, plain, where))
    if dataclasses.is_dataclass(kind):
        return _object(kind, strict=strict)
    raise TypeError(f"no JSON form is defined for {kind!r}")


def wrong(where: str, wanted: str, plain: object) -> ValueError:
    """Return the error for a value of the wrong type."""
    shown = "nothing" if plain is None else brief(plain)
    return ValueError(f"{where or 'the body'} must be {wanted}, not {shown}")


def _scalar(kind: type, plain: Any, where: str) -> Any:
    if type(plain) is kind:
        return plain
    if kind is float and type(plain) is int:
        return float(plain)
    raise wrong(where, _SCALARS[kind], plain)


def _word(words: Mapping[str, Any], _name: str, plain: Any, where: str) -> Any:
    found = words.get(plain) if isinstance(plain, str) else None
    if found is None:
        raise wrong(where, f"one of {', '.join(words)}", plain)
    return found


def _moment(plain: Any, where: str) -> datetime:
    try:
        found = datetime.fromisoformat(_scalar(str, plain, where))
    except ValueError:
        raise wrong(where, "a time such as 2026-01-31T12:00:00+00:00", plain) from None
    if found.tzinfo is None:
        raise wrong(where, "a time with its offset from UTC", plain)
    return found


def _union(kinds: Sequence[Any], *, strict: bool) -> Read:
    others = [each for each in kinds if each is not type(None)]
    readers = [reader(each, strict=strict) for each in others]
    optional = len(others) < len(kinds)

    def read(plain: Any, where: str) -> Any:
        if plain is None and optional:
            return None
        for each in readers[:-1]:
            try:
                return each(plain, where)
            except ValueError:
                continue
        return readers[-1](plain, where)

    return read


def _several(make: Callable[[Iterable[Any]], Any], each: Read, plain: Any, where: str) -> Any:
    if not isinstance(plain, list):
        raise wrong(where, "a list", plain)
    return make([each(value, f"{where}[{number}]") for number, value in enumerate(plain)])


def _fixed(readers: Sequence[Read], plain: Any, where: str) -> Any:
    if not isinstance(plain, list) or len(plain) != len(readers):
        raise wrong(where, f"a list of {len(readers)} values", plain)
    return tuple(
        read(value, f"{where}[{number}]") for number, (read, value) in enumerate(zip(readers, plain, strict=True))
    )


def _key(kind: Any) -> Callable[[str], Any]:
    return {str: str, int: int}.get(kind, kind)  # type: ignore[no-any-return] # an enumeration of texts


def _mapping(key: Callable[[str], Any], each: Read, plain: Any, where: str) -> Any:
    if not isinstance(plain, dict):
        raise wrong(where, "an object", plain)
    return {key(name): each(value, f"{where}.{name}" if where else name) for name, value in plain.items()}


def _object(kind: type, *, strict: bool) -> Read:  # noqa: C901 - two functions that share what they have learnt
    """Return the reader of a dataclass. The types of its fields are looked up on first use."""
    known: dict[str, Read] = {}
    needed: set[str] = set()

    def learn() -> None:
        for field in dataclasses.fields(kind):
            if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
                needed.add(field.name)
        known.update({name: reader(hint, strict=strict) for name, hint in hints(kind).items()})

    def read(plain: Any, where: str) -> Any:
        if not known:
            learn()
        if not isinstance(plain, dict):
            raise wrong(where, "an object", plain)
        below = f"{where}." if where else ""
        values: Plain = {}
        for name, value in plain.items():
            field = known.get(name)
            if field is not None:
                values[name] = field(value, f"{below}{name}")
            elif strict:
                raise ValueError(f"there is no field {brief(below + name)}: there are {', '.join(known)}")
        missing = needed - values.keys()
        if missing:
            raise ValueError(f"the field {below}{min(missing)} is missing")
        return kind(**values)

    return read
