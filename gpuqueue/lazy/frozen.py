"""A ``dataclass`` decorator for frozen, slotted classes that generates their methods on first use.

The standard decorator generates and compiles all methods when the module is imported. That took half of the run time of
a command, mostly for classes that the command never used. Classes of this decorator behave the same. Import it instead
of the standard one (docs/internals/adr/0008 says why no library is used)::

    from gpuqueue.lazy.frozen import dataclass

A class may inherit the fields of another one of this decorator, whose fields come first.
This module generates ``__init__`` when the first instance is made. ``dataclasses`` generates all other methods when one
of them is first looked up. The supported arguments of ``dataclasses.field`` are default, default_factory, repr, compare
and hash. The field ``_: KW_ONLY`` makes all fields after it keyword-only.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass", "defaults_of", "is_dataclass"]

#: The attributes that ``dataclasses`` adds to a frozen, slotted class, apart from its slots and ``__init__``.
_WRITTEN = (
    *("__eq__", "__hash__", "__repr__", "__getstate__", "__setstate__"),
    *("__dataclass_params__", "__match_args__"),
    *(("__replace__",) if sys.version_info >= (3, 13) else ()),
)
#: The name of the field that is no field, as in the examples of ``dataclasses.KW_ONLY``.
_KW_ONLY = "_"


class _Unwritten:
    """A placeholder for one attribute of a class, which is generated when it is first looked up."""

    __slots__ = ("_name", "_write")

    def __init__(self, name: str, write: Callable[[], Any]) -> None:
        self._name, self._write = name, write

    def __get__(self, value: object, owner: type | None = None) -> Any:
        found = self._write()[self._name]
        bind = getattr(type(found), "__get__", None)
        return found if bind is None else bind(found, value, owner)


def _frozen(plan: type, *, kw_only: bool) -> type:
    """Return a copy of the class *plan* with a slot for each field and placeholders for its methods."""
    own = plan.__annotations__
    body = {name: each for name, each in vars(plan).items() if name not in {"__dict__", "__weakref__"}}
    body |= {"__annotations__": own, "__qualname__": plan.__qualname__}
    bases = [base for base in reversed(plan.__mro__[1:]) if "__defaults__" in vars(base)]
    defaults = {name: value for base in bases for name, value in vars(base)["__defaults__"].items()}
    # The standard decorator would generate all methods of a base, so it gets one class with the fields of all.
    inherited = {name: value for name, value in defaults.items() if value is not dataclasses.MISSING}
    types = {name: base.__annotations__[name] for base in bases for name in vars(base)["__slots__"]}
    flat = {**inherited, **body, "__annotations__": {**types, **own}}
    defaults |= {name: body.get(name, dataclasses.MISSING) for name in own}

    def first() -> Any:
        made.__init__ = _init(made, defaults, kw_only=kw_only)
        return vars(made)

    def described() -> Any:  # replace and asdict need only the fields, and no methods
        made.__dataclass_fields__ = whole(frozen=False, init=False, repr=False, eq=False).__dataclass_fields__
        return vars(made)

    def whole(**how: bool) -> Any:
        copy = type(plan)(plan.__name__, () if bases else plan.__bases__, dict(flat))
        return dataclasses.dataclass(kw_only=kw_only, **how)(copy)

    def rest() -> Any:
        written = whole(frozen=True, slots=True)
        for name in unwritten:
            setattr(made, name, vars(written)[name])
        return vars(made)

    unwritten = [name for name in _WRITTEN if name not in body]
    slotted = {name: each for name, each in body.items() if name not in own}
    slotted |= {
        "__slots__": tuple(name for name in own if name != _KW_ONLY),
        "__init__": _Unwritten("__init__", first),
    }
    slotted |= {"__setattr__": _refuse_to_set, "__delattr__": _refuse_to_delete}
    slotted |= {"__dataclass_fields__": _Unwritten("__dataclass_fields__", described)}
    slotted |= {name: _Unwritten(name, rest) for name in unwritten}
    slotted["__defaults__"] = {name: value for name, value in defaults.items() if name != _KW_ONLY}
    made: Any = type(plan)(plan.__name__, plan.__bases__, slotted)
    return made  # type: ignore[no-any-return] # Any, so that __init__ can be assigned above


def is_dataclass(kind: type) -> bool:
    """Return whether *kind* is a dataclass, of this module or of the standard one. Generates nothing."""
    return "__defaults__" in vars(kind) or dataclasses.is_dataclass(kind)


def defaults_of(kind: type) -> Mapping[str, Any]:
    """Return the names of the fields of a dataclass with their defaults.

    The default is MISSING if there is none, and the field itself if it has a factory. The first call takes a
    hundredth of the time of ``dataclasses.fields``.
    """
    if "__defaults__" in vars(kind):
        found: Mapping[str, Any] = vars(kind)["__defaults__"]
    else:
        found = {field.name: field for field in dataclasses.fields(kind)}
    return {name: _default_of(value) for name, value in found.items()}


def _default_of(value: Any) -> Any:
    if isinstance(value, dataclasses.Field) and value.default_factory is dataclasses.MISSING:
        return value.default
    return value


def _refuse_to_set(_: object, name: str, __: object) -> None:
    # The method of dataclasses checks for the class that it was generated for, which is another one here.
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(_: object, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _init(made: type, defaults: Mapping[str, Any], *, kw_only: bool) -> Callable[..., None]:
    """Generate ``__init__``. It sets each slot by its descriptor, because ``__setattr__`` always raises."""
    known: dict[str, Any] = {"MISSING": dataclasses.MISSING}
    head, lines = ["self", "*"] if kw_only else ["self"], []
    for name, default in defaults.items():
        if name == _KW_ONLY:
            head.append("*")
            continue
        value: Any = default
        make: Any = dataclasses.MISSING
        if isinstance(default, dataclasses.Field):
            value, make = default.default, default.default_factory
        if make is not dataclasses.MISSING:
            known[f"make_{name}"], value = make, dataclasses.MISSING
            lines.append(f"if {name} is MISSING: {name} = make_{name}()")
        known[f"set_{name}"], known[f"default_{name}"] = getattr(made, name).__set__, value
        optional = value is not dataclasses.MISSING or make is not dataclasses.MISSING
        head.append(f"{name}=default_{name}" if optional else name)
        lines.append(f"set_{name}(self, {name})")
    if hasattr(made, "__post_init__"):
        lines.append("self.__post_init__()")
    exec("\n ".join((f"def __init__({', '.join(head)}):", *lines)), known)  # noqa: S102 - the text holds only field names of our classes
    known["__init__"].__qualname__ = f"{made.__qualname__}.__init__"
    return known["__init__"]  # type: ignore[no-any-return] # the function generated above


if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(*, frozen: bool, slots: bool, kw_only: bool = False) -> Callable[[type], type]:
        """Return a decorator like ``dataclasses.dataclass`` that generates the methods on first use.

        Raises:
            TypeError: *frozen* or *slots* is false.

        """
        if not frozen or not slots:
            raise TypeError("this decorator makes only frozen classes with slots")
        return lambda plan: _frozen(plan, kw_only=kw_only)
