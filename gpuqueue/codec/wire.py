"""Values as JSON, and back. The types of a dataclass's fields say how each field is written and read.

The store, the files of a run, the history and both ends of the HTTP API use this module, and
:mod:`gpuqueue.service.schema` derives the OpenAPI document from the same types. A field of an object has the name of
the dataclass's field. Times are ISO 8601 texts, priorities their names. A class with ``AS_TEXT``, which describes the
text, is written by ``str`` and read by its method ``parse``: the indexes of arrays are texts such as ``0-99``. Texts
that are not valid UTF-8 become escaped surrogates, as in all payloads of gpuqueue.

The API and ``--json`` get all fields. Store and files get no field that has its default, which keeps them short: a
default is a part of the format, and never changes.
Requests are read strictly: an unknown field is an error. Answers, the store and files may have fields that this version
does not know. A class names in ``DERIVED`` the properties that API and ``--json`` get beside its fields.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import Enum, IntEnum
from functools import lru_cache, partial
from importlib import import_module
from math import isfinite
from types import TracebackType
from typing import Any, TypeVar, Union

from gpuqueue.clock import from_iso
from gpuqueue.errors import BadRequest, Unreadable
from gpuqueue.lazy.frozen import defaults_of, is_dataclass
from gpuqueue.lazy.imports import later
from gpuqueue.text.json_fields import MAX_INTEGER, shown
from gpuqueue.text.sanitize import brief

if typing.TYPE_CHECKING:
    from gpuqueue.text import nearest
else:
    nearest = later("gpuqueue.text.nearest")

T = TypeVar("T")
#: Reads a plain value.
Read = Callable[[Any], Any]

_AS_THEY_ARE = frozenset({type(None), bool, int, float, str})
_TEXT = frozenset({str})
_SCALARS = {bool: "true or false", int: "a whole number from 0 up", float: "a number", str: "a text"}
#: Modules of the types that operations of the client name, and of those that fields name and that their modules import
#: only for type checkers.
HOMES = {
    "AccessToken": "gpuqueue.model.access_token",
    "AuditEntry": "gpuqueue.model.audit",
    "Axis": "gpuqueue.model.sweep",
    "CalendarReservation": "gpuqueue.model.calendar",
    "Change": "gpuqueue.client.changes",
    "Chosen": "gpuqueue.client.selection",
    "Course": "gpuqueue.model.statistics",
    "DeletedSnapshot": "gpuqueue.model.code_snapshot",
    "Dependency": "gpuqueue.model.dependencies",
    "DeviceFilter": "gpuqueue.model.device",
    "DeviceStatus": "gpuqueue.queue.lease",
    "EarlySignal": "gpuqueue.model.job_spec",
    "Event": "gpuqueue.model.event",
    "Explanation": "gpuqueue.queue.explanation",
    "Job": "gpuqueue.model.job",
    "JobState": "gpuqueue.model.job",
    "JobValues": "gpuqueue.model.job_values",
    "LearningReport": "gpuqueue.model.learning_report",
    "Lender": "gpuqueue.model.lending",
    "Line": "gpuqueue.learning.line",
    "LimitsInUse": "gpuqueue.model.limits",
    "Me": "gpuqueue.model.access",
    "Moved": "gpuqueue.model.api",
    "NeverBegan": "gpuqueue.model.api",
    "Preemption": "gpuqueue.queue.explanation",
    "Preference": "gpuqueue.model.placement",
    "Priority": "gpuqueue.model.job_spec",
    "Record": "gpuqueue.model.run",
    "RepeatingJob": "gpuqueue.model.repeating",
    "RetryOn": "gpuqueue.model.retries",
    "RunMark": "gpuqueue.model.run_mark",
    "Sender": "gpuqueue.queue.senders",
    "SignInCode": "gpuqueue.model.api",
    "Statistics": "gpuqueue.model.statistics",
    "StoredSnapshot": "gpuqueue.model.code_snapshot",
    "Whether": "gpuqueue.model.api",
    "Why": "gpuqueue.client.why",
    "WhySentences": "gpuqueue.model.why_sentences",
    "datetime": "datetime",
}
VERSION = 1

Plain = dict[str, Any]


def to_plain(value: Any) -> Any:
    """Return *value* as what ``json.dumps`` takes, with all fields, for the API."""
    kind = type(value)
    if kind in _AS_THEY_ARE:
        return value
    return _writer(kind, whole=True)(value)  # type: ignore[arg-type] # a class is hashable


def to_stored(value: Any) -> Any:
    """Return *value* as what ``json.dumps`` takes, without the fields that have their default, for store and files."""
    kind = type(value)
    if kind in _AS_THEY_ARE:
        return value
    return _writer(kind, whole=False)(value)  # type: ignore[arg-type] # as above


@lru_cache(maxsize=512)
def _writer(kind: type, *, whole: bool) -> Callable[[Any], Any]:  # noqa: PLR0911 - one for each kind of type
    below = to_plain if whole else to_stored
    if issubclass(kind, IntEnum) or hasattr(kind, "AS_TEXT"):
        return str
    if issubclass(kind, Enum):
        return lambda value: value.value
    if issubclass(kind, datetime):
        return datetime.isoformat
    if is_dataclass(kind):
        return _whole_writer(kind) if whole else _stored_writer(kind)
    if issubclass(kind, Mapping):  # an environment has many texts, and a call for each takes time
        return lambda value: {
            str(key): each if type(each) in _AS_THEY_ARE else below(each) for key, each in value.items()
        }
    if issubclass(kind, (set, frozenset)):
        return lambda value: sorted(map(below, value), key=str)  # the order of a set differs in each process
    if issubclass(kind, (Sequence, Collection)):
        return lambda value: [each if type(each) in _AS_THEY_ARE else below(each) for each in value]
    return str


def _whole_writer(kind: Any) -> Callable[[Any], Plain]:
    names = (*defaults_of(kind), *_derived(kind))
    return lambda value: {name: to_plain(getattr(value, name)) for name in names}


def _stored_writer(kind: Any) -> Callable[[Any], Plain]:
    defaults = [*defaults_of(kind).items()]

    def write(value: Any) -> Plain:
        plain: Plain = {}
        for name, default in defaults:
            item = getattr(value, name)
            if item is not default and item != default:
                plain[name] = item if type(item) in _AS_THEY_ARE else to_stored(item)
        return plain

    return write


def from_request(kind: type[T], plain: object) -> T:
    """Return the *kind* that a request has.

    Raises:
        BadRequest: *plain* does not describe one, or has a field that *kind* does not have.

    """
    try:
        return typing.cast("T", reader(kind, strict=True)(plain))  # type: ignore[arg-type] # as above
    except _Wrong as error:
        raise BadRequest.of_faults((each.path, each.message("the body")) for each in error.all()) from None
    except ValueError as error:
        raise BadRequest(str(error)) from None


def from_plain(kind: Any, plain: object, what: str = "the service's answer") -> Any:
    """Return the *kind* that an answer of the service, or the part *what* of the store or of a file, has.

    Unknown fields are ignored, and so is null for a field that has a default and cannot be null.

    Raises:
        Unreadable: *plain* does not describe one.

    """
    try:
        return reader(kind, strict=False)(plain)
    except _Wrong as error:
        raise Unreadable(f"{what} cannot be read: {error.message('it')}") from None
    except (ValueError, BadRequest) as error:
        raise Unreadable(f"{what} cannot be read: {error}") from error


class _Wrong(ValueError):
    """A plain value is not what its field must be. The containers of the value add their part of the path.

    The message is *before*, the path and *after*, or *words*. ``others`` are the same for other fields of an object.
    """

    def __init__(self, after: str, *, before: str = "", words: str = "") -> None:
        super().__init__(words or before + after)
        self._before, self._after, self._words = before, after, words
        self.path = ""
        self.others: list[_Wrong] = []

    def all(self) -> Iterator[_Wrong]:
        """Yield this error, and those of other fields."""
        yield self
        for each in self.others:
            yield from each.all()

    def below(self, part: str) -> _Wrong:
        """Add the name, or the index in brackets, under which the value was found."""
        for each in self.all():
            glue = "." if each.path and not each.path.startswith("[") else ""
            each.path = f"{part}{glue}{each.path}"
        return self

    def message(self, whole: str) -> str:
        """Return what is wrong. The value without a path is *whole*."""
        return self._words or f"{self._before}{self.path or whole}{self._after}"


def _not(wanted: str, plain: object) -> _Wrong:
    """Return the error for a value of the wrong type. A container is not quoted: it may hold secrets."""
    return _Wrong(f" must be {wanted}, not {'nothing' if plain is None else shown(plain)}")


class _Names(dict[str, Any]):
    """The names in the annotations of a module: its own, and those of HOMES."""

    def __missing__(self, name: str) -> Any:
        if name not in HOMES:
            raise KeyError(name)
        return getattr(import_module(HOMES[name]), name)


@lru_cache(maxsize=256)
def hints(kind: type) -> Mapping[str, Any]:
    """Return the types of the fields of a dataclass, by name."""
    known = defaults_of(kind)
    types: dict[str, Any] = {}
    for owner in reversed(kind.__mro__[:-1]):  # the names in an annotation are those of the module that has it
        types |= _types(owner, {name: str(text) for name, text in owner.__annotations__.items() if name in known})
    return {name: types[name] for name in known}


def derived(kind: type) -> Mapping[str, Any]:
    """Return the types of the properties that are written beside the fields of a dataclass, by name."""
    return _types(kind, {name: getattr(kind, name).fget.__annotations__["return"] for name in _derived(kind)})


def _derived(kind: type) -> Sequence[str]:
    return getattr(kind, "DERIVED", ())


def _types(kind: type, annotations: Mapping[str, str]) -> Mapping[str, Any]:
    texts = "".join(f"{text}, " for text in annotations.values())  # compiled once, not once for each field
    return dict(zip(annotations, type_named(f"({texts})", kind.__module__), strict=True))


def type_named(text: str, module: str = __name__) -> Any:
    """Return the type that *text* names in *module*, such as ``tuple[Event, ...]``."""
    return eval(text, {}, _Names(vars(sys.modules[module])))  # noqa: S307 - annotations of our own


@lru_cache(maxsize=1024)
def reader(kind: Any, *, strict: bool) -> Read:  # noqa: PLR0911 - one for each kind of type
    """Return the function that reads a value of the type *kind*."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any or kind is object:
        return lambda plain: plain
    if kind in _SCALARS:
        return partial(_scalar, kind)
    if origin in {Union, types.UnionType}:
        return _union(args, strict=strict)
    if origin is tuple and not (len(args) == 2 and args[1] is Ellipsis):  # noqa: PLR2004 - X, ...
        return partial(_fixed, tuple(reader(each, strict=strict) for each in args))
    if origin in {tuple, list, frozenset, Sequence, Collection, Iterable}:
        make = frozenset if origin is frozenset else list if origin is list else tuple
        return partial(_several, make, args[0], reader(args[0], strict=strict))
    if origin in {dict, Mapping}:
        return partial(_mapping, args[0], args[1], reader(args[1], strict=strict))
    if isinstance(kind, type):
        return _class(kind, strict=strict)
    raise TypeError(f"no JSON form is defined for {kind!r}")


def _class(kind: type, *, strict: bool) -> Read:
    if issubclass(kind, IntEnum):
        words = {str(each): each for each in kind}
        return partial(_word, words if strict else {**words, **{int(each): each for each in kind}})
    if issubclass(kind, Enum):
        return partial(_word, {str(each.value): each for each in kind})
    if issubclass(kind, datetime):
        return _moment
    if hasattr(kind, "AS_TEXT"):
        parse: Read = kind.parse  # type: ignore[attr-defined] # such a class has it
        return lambda plain: parse(_scalar(str, plain))
    if is_dataclass(kind):
        return _Object(kind, strict=strict)
    raise TypeError(f"no JSON form is defined for {kind!r}")


def _scalar(kind: type, plain: Any) -> Any:
    found = type(plain)
    if found is not kind and not (kind is float and found is int):
        raise _not(_SCALARS[kind], plain)
    if (found is int and not 0 <= plain <= MAX_INTEGER) or (found is float and not isfinite(plain)):
        raise _not(_SCALARS[kind], plain)
    return plain


def _word(words: Mapping[Any, Any], plain: Any) -> Any:
    word = words.get(plain) if type(plain) in {str, int} else None
    if word is None:
        raise _not(f"one of {', '.join(map(str, words))}", plain)
    return word


def _moment(plain: Any) -> datetime:
    wanted = "a time such as 2026-01-31T12:00:00+00:00"
    try:
        moment = from_iso(_scalar(str, plain))
    except ValueError:
        raise _not(wanted, plain) from None
    if moment.tzinfo is None:
        raise _not("a time with its offset from UTC", plain)
    return moment


def _union(kinds: Sequence[Any], *, strict: bool) -> Read:
    others = [each for each in kinds if each is not type(None)]
    readers = [reader(each, strict=strict) for each in others]
    optional = len(others) < len(kinds)

    def read(plain: Any) -> Any:
        if plain is None and optional:
            return None
        for each in readers[:-1]:
            try:
                return each(plain)
            except ValueError:
                continue
        return readers[-1](plain)

    return read


def _several(make: Callable[[Iterable[Any]], Any], kind: Any, read: Read, plain: Any) -> Any:
    if not isinstance(plain, list):
        raise _not("a list", plain)
    if kind is str and _TEXT.issuperset(map(type, plain)):  # the fast path for arguments
        return make(plain)
    return make([_part(read, value, f"[{number}]") for number, value in enumerate(plain)])


def _part(read: Read, plain: Any, part: str) -> Any:
    try:
        return read(plain)
    except _Wrong as error:
        raise error.below(part) from None


def _fixed(readers: Sequence[Read], plain: Any) -> Any:
    if not isinstance(plain, list) or len(plain) != len(readers):
        raise _not(f"a list of {len(readers)} values", plain)
    return tuple(
        _part(read, value, f"[{number}]") for number, (read, value) in enumerate(zip(readers, plain, strict=True))
    )


def _mapping(key: Any, kind: Any, read: Read, plain: Any) -> Any:
    if not isinstance(plain, dict):
        raise _not("an object", plain)
    if key is str and kind is str and _TEXT.issuperset(map(type, plain.values())):  # the fast path for environments
        return dict(plain)
    return {key(name): _part(read, value, name) for name, value in plain.items()}


class _Object:
    """Reads a dataclass. The types of its fields are looked up on first use, because most values have few of them."""

    def __init__(self, kind: Any, *, strict: bool) -> None:
        self._kind, self._strict = kind, strict
        self._defaults = defaults_of(kind)
        self._needed = {name for name, default in self._defaults.items() if default is dataclasses.MISSING}
        self._readers: dict[str, Read] = {}

    def __call__(self, plain: Any) -> Any:
        """Return the value that *plain* describes."""
        if not isinstance(plain, dict):
            raise _not("an object", plain)
        values: Plain = {}
        wrong: list[_Wrong] = []
        for name, value in plain.items():
            read = self._readers.get(name) or self._reader(name)
            if read is None:
                if self._strict:
                    wrong.append(self._no_field(name))
                continue
            try:
                values[name] = read(value)
            except _Wrong as error:
                wrong.append(error.below(name))
            except BadRequest as error:
                if not self._strict:
                    raise
                wrong.append(_Wrong("", words=str(error)).below(name))
        missing = () if plain.keys() >= self._needed else sorted(self._needed - plain.keys())
        wrong += [_Wrong(" is missing", before="the field ").below(name) for name in missing]
        if wrong:
            wrong[0].others += wrong[1:]
            raise wrong[0]
        return self._kind(**values)

    def _no_field(self, name: str) -> _Wrong:
        hint = nearest.meant(name, self._defaults, others="GET /api/v1/openapi.json names all fields")
        return _Wrong(f"': {hint}", before="there is no field '").below(brief(name)[1:-1])

    def _reader(self, name: str) -> Read | None:
        """Return how the field *name* is read, None if there is no such field."""
        if name not in self._defaults:
            return None
        kind, default = hints(self._kind)[name], self._defaults[name]
        read = reader(kind, strict=self._strict)
        is_optional = default is not dataclasses.MISSING and not isinstance(default, dataclasses.Field)
        if is_optional and not self._strict and type(None) not in typing.get_args(kind):
            self._readers[name] = lambda plain: default if plain is None else read(plain)
        else:
            self._readers[name] = read
        return self._readers[name]


#: Made once: ``json.dumps`` with separators makes an encoder for each call.
_ENCODE = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True).encode


def dump(plain: Plain) -> str:
    """Return *plain* as compact JSON in ASCII."""
    return _ENCODE(plain)


class meaning:  # noqa: N801 - used as a function; one from contextlib would take four times as long
    """Turn the errors for invalid values, such as an unknown word or a peak without a source, into one error.

    Raises:
        Unreadable: instead of ValueError and BadRequest.

    """

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        """Enter the context."""

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        """Raise Unreadable in place of *error*, if *error* is a ValueError or a BadRequest."""
        if isinstance(error, (ValueError, BadRequest)):
            raise Unreadable(f"{self._what} cannot be read: {error}") from error
