"""Adds options to commands."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import TypeVar

    F = TypeVar("F", bound=Callable[..., Any])

Option = Callable[[Any], Any]


def with_options(options: Iterable[Option]) -> Callable[[F], F]:
    """Return a decorator that adds *options* to a command, in the order of the help."""

    def add(command: F) -> F:
        for option in reversed([*options]):
            command = option(command)
        return command

    return add
