"""Strange input for property tests: what JSON, text and files can hold and no user writes on purpose."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

#: For every property test with strange input: few examples, always the same, so that the quick run stays quick and
#: stable.
few_examples = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

#: Any text, including text that breaks terminals, encodings and lines.
texts = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        [
            "",
            "\x1b]0;owned\x07",
            "\x1b[2J\x1b[31m",
            "a\nb\r\nc",
            "\x00",
            "\udcff\udc80",
            "\ud800",
            "\u202eabc",  # right to left
            "a\u200bb\ufeff",  # zero width
            "\u2028\u2029",
            "'; DROP TABLE jobs; --",
            "$(touch /tmp/x)`id`",
            "-rf",
            "=1+1",
            "x" * 5000,
        ]
    ),
)

#: Any value that JSON can hold, including NaN and unbounded integers.
values: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.sampled_from([0, -1, 2**63, 2**70, 10**400, float("nan"), float("inf"), -float("inf"), 1e308]),
        st.floats(),
        texts,
    ),
    lambda below: st.one_of(st.lists(below, max_size=3), st.dictionaries(texts, below, max_size=3)),
    max_leaves=6,
)


def mutants(good: str) -> st.SearchStrategy[str]:
    """Return damaged forms of a good payload.

    They are cut off, partly replaced, with a value of another kind, or without a key.
    """
    plain = json.loads(good)

    def with_value(path: int, value: Any) -> str:
        places = list(_places(plain))
        steps = places[path % len(places)]
        changed = json.loads(good)
        at = changed
        for step in steps[:-1]:
            at = at[step]
        at[steps[-1]] = value
        return json.dumps(changed)

    def without(path: int) -> str:
        places = [steps for steps in _places(plain) if isinstance(steps[-1], str)]
        steps = places[path % len(places)]
        changed = json.loads(good)
        at = changed
        for step in steps[:-1]:
            at = at[step]
        del at[steps[-1]]
        return json.dumps(changed)

    place = st.integers(0, len(good))
    return st.one_of(
        st.builds(lambda cut: good[:cut], place),
        st.builds(lambda cut, text: good[:cut] + text + good[cut + len(text) :], place, texts),
        st.builds(with_value, st.integers(0, 1000), values),
        st.builds(without, st.integers(0, 1000)),
    )


def _places(plain: Any, so_far: tuple[Any, ...] = ()) -> Any:
    pairs = plain.items() if isinstance(plain, dict) else enumerate(plain) if isinstance(plain, list) else ()
    for step, value in pairs:
        yield (*so_far, step)
        yield from _places(value, (*so_far, step))


def make_huge(path: Path) -> None:
    """Create a sparse file of a terabyte."""
    with path.open("wb") as file:
        file.truncate(2**40)


def make_zeros(path: Path) -> None:
    """Create a link to an endless file."""
    path.symlink_to("/dev/zero")


def make_socket(path: Path) -> None:
    """Create a socket.

    A socket's path may have only about 100 bytes, so the socket is created from inside its directory.
    """
    here = os.open(".", os.O_RDONLY)
    try:
        os.chdir(path.parent)
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.fchdir(here)
        os.close(here)


#: What may be in the place of a file and is no usable file.
NO_FILES: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "directory": lambda path: path.mkdir(),
    "huge": make_huge,
    "endless": make_zeros,
    "loop": lambda path: path.symlink_to(path),
    "socket": make_socket,
    "dangling": lambda path: path.symlink_to("/nonexistent/file"),
}
