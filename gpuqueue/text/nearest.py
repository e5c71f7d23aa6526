"""What a mistaken name may have been meant to be. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable

#: Most similar names in a hint, and most names of which all are listed where none is similar.
MOST_SIMILAR, MOST_LISTED = 2, 20


def meant(name: str, known: Iterable[str], shown: Callable[[str], str] = str, *, others: str = "") -> str:
    """Return a hint for an unknown *name*: similar names, or all *known* ones if none is similar.

    *others* says where they are, if there are many.
    """
    from difflib import get_close_matches  # noqa: PLC0415 - only where a name is mistaken

    names = [*known]
    with_unit = [each for each in names if each in {f"{name}_s", f"{name}_bytes"}]
    close = with_unit or get_close_matches(name, names, n=MOST_SIMILAR)
    if close:
        return f"did you mean {' or '.join(map(shown, close))}?"
    return others if others and len(names) > MOST_LISTED else f"there are {', '.join(map(shown, names))}"
