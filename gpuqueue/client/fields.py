"""Methods that take the fields of one value as their arguments, so that the fields are listed only once."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inspect import Signature
    from typing import Concatenate, ParamSpec, TypeVar

    P = ParamSpec("P")
    Self = TypeVar("Self")
    Value = TypeVar("Value")
    First = TypeVar("First")
    Result = TypeVar("Result")


class _FromFields:
    """A method whose last parameter is a value; it is called with the fields of the value instead."""

    def __init__(self, value: Callable[[], Callable[..., Any]], method: Callable[..., Any], before: int) -> None:
        self._value, self._method, self._before = value, method, before
        self.__doc__ = method.__doc__

    def __get__(self, owner: object, kind: type | None = None) -> Any:
        return self if owner is None else MethodType(self, owner)

    def __call__(self, owner: object, /, *args: Any, **fields: Any) -> Any:
        return self._method(owner, *args[: self._before], self._value()(*args[self._before :], **fields))

    @property
    def __signature__(self) -> Signature:
        """Return the signature for ``help`` and for editors."""
        from inspect import Signature, signature  # noqa: PLC0415 - slow to import, and no command needs it

        own = [*signature(self._method).parameters.values()][:-1]
        return Signature([*own, *signature(self._value()).parameters.values()])


def from_fields(
    value: Callable[[], Callable[P, Value]],
) -> Callable[[Callable[[Self, Value], Result]], Callable[Concatenate[Self, P], Result]]:
    """Return a decorator for a method of one value: the method takes the fields of the class that *value* returns."""
    made: Any = lambda method: _FromFields(value, method, before=0)  # noqa: E731 - the cast is the point
    return made  # type: ignore[no-any-return] # a descriptor that behaves like a function


def then_from_fields(
    value: Callable[[], Callable[P, Value]],
) -> Callable[[Callable[[Self, First, Value], Result]], Callable[Concatenate[Self, First, P], Result]]:
    """Return a decorator as :func:`from_fields` does, for a method with one argument before the fields."""
    made: Any = lambda method: _FromFields(value, method, before=1)  # noqa: E731 - the cast is the point
    return made  # type: ignore[no-any-return] # a descriptor that behaves like a function
