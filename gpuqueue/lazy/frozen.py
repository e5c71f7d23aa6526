"""Frozen values whose methods are written when they are first needed: a person waits for every import.

``dataclasses`` writes a class's methods as text and compiles them at once: half of all that a command did went into
values that it never made. This is its decorator for the values of this house, which are frozen and have slots; whoever
uses one meets no difference. Import it in its place (why no library: docs/adr/0008)::

    from gpuqueue.lazy.frozen import dataclass

``__init__`` is written here when the first value is made, all else by ``dataclasses`` when it is first looked up. Of
``dataclasses.field`` it knows default, default_factory, repr, compare and hash.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

#: What ``dataclasses`` gives to a class like ours, beside its slots and ``__init__``.
_WRITTEN = (
    *("__eq__", "__hash__", "__repr__", "__getstate__", "__setstate__"),
    *("__dataclass_params__", "__match_args__"),
    *(("__replace__",) if sys.version_info >= (3, 13) else ()),
)


class _Unwritten:
    """Stands for one attribute of a class; who looks it up has it written."""

    __slots__ = ("_name", "_write")

    def __init__(self, name: str, write: Callable[[], Any]) -> None:
        self._name, self._write = name, write

    def __get__(self, value: object, owner: type | None = None) -> Any:
        found = self._write()[self._name]
        bind = getattr(type(found), "__get__", None)
        return found if bind is None else bind(found, value, owner)


def _frozen(plan: type, *, kw_only: bool) -> type:
    """Return *plan* again with a slot for each field, as only a new class can have them; its methods are to come."""
    fields = plan.__annotations__
    body = {name: each for name, each in vars(plan).items() if name not in {"__dict__", "__weakref__"}}
    body |= {"__annotations__": fields, "__qualname__": plan.__qualname__}

    def first() -> Any:
        made.__init__ = _init(made, {name: body.get(name, dataclasses.MISSING) for name in fields}, kw_only=kw_only)
        return vars(made)

    def described() -> Any:  # what replace and asdict want of a class: none of its methods
        made.__dataclass_fields__ = whole(frozen=False, init=False, repr=False, eq=False).__dataclass_fields__
        return vars(made)

    def whole(**how: bool) -> Any:
        copy = type(plan)(plan.__name__, plan.__bases__, dict(body))
        return dataclasses.dataclass(kw_only=kw_only, **how)(copy)

    def rest() -> Any:
        written = whole(frozen=True, slots=True)
        for name in unwritten:
            setattr(made, name, vars(written)[name])
        return vars(made)

    unwritten = [name for name in _WRITTEN if name not in body]
    slotted = {name: each for name, each in body.items() if name not in fields}
    slotted |= {"__slots__": tuple(fields), "__init__": _Unwritten("__init__", first)}
    slotted |= {"__setattr__": _refuse_to_set, "__delattr__": _refuse_to_delete}
    slotted |= {"__dataclass_fields__": _Unwritten("__dataclass_fields__", described)}
    slotted |= {name: _Unwritten(name, rest) for name in unwritten}
    made: Any = type(plan)(plan.__name__, plan.__bases__, slotted)
    return made  # type: ignore[no-any-return] # a class whose __init__ is set like any attribute


def _refuse_to_set(_: object, name: str, __: object) -> None:
    # Those of dataclasses look for the class that they were written for, and that is not ours.
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(_: object, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _init(made: type, defaults: Mapping[str, Any], *, kw_only: bool) -> Callable[..., None]:
    """Write ``__init__``: each slot is set by its own descriptor, as ``__setattr__`` refuses."""
    known: dict[str, Any] = {"MISSING": dataclasses.MISSING}
    head, lines = ["self", "*"] if kw_only else ["self"], []
    for name, default in defaults.items():
        value: Any = default
        make: Any = dataclasses.MISSING
        if isinstance(default, dataclasses.Field):
            value, make = default.default, default.default_factory
        if make is not dataclasses.MISSING:
            known[f"make_{name}"], value = make, dataclasses.MISSING
            lines.append(f"if {name} is MISSING: {name} = make_{name}()")
        known[f"set_{name}"], known[f"default_{name}"] = vars(made)[name].__set__, value
        optional = value is not dataclasses.MISSING or make is not dataclasses.MISSING
        head.append(f"{name}=default_{name}" if optional else name)
        lines.append(f"set_{name}(self, {name})")
    if hasattr(made, "__post_init__"):
        lines.append("self.__post_init__()")
    exec("\n ".join((f"def __init__({', '.join(head)}):", *lines)), known)  # noqa: S102 - of our own field names
    known["__init__"].__qualname__ = f"{made.__qualname__}.__init__"
    return known["__init__"]  # type: ignore[no-any-return] # what was just written


if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(*, frozen: bool, slots: bool, kw_only: bool = False) -> Callable[[type], type]:
        """Do as ``dataclasses.dataclass`` does, later."""
        if not frozen or not slots:
            raise TypeError("only values that are frozen and have slots are made so")
        return lambda plan: _frozen(plan, kw_only=kw_only)
