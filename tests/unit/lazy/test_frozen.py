"""Tests that the lazily generated classes of `gpuqueue.lazy.frozen` behave like those of ``dataclasses``."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError, field
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, TypeVar

import pytest

import gpuqueue
from gpuqueue.errors import BadRequest
from gpuqueue.lazy import frozen
from gpuqueue.model.job_spec import Account

T = TypeVar("T")


def both(*, inherits: bool = False, **how: bool) -> tuple[Any, Any]:
    """Return the same class, made by ``dataclasses`` and by `frozen`. It may inherit its fields from another one."""

    def made(dataclass: Any) -> Any:
        @dataclass(frozen=True, slots=True, **how)
        class Point:
            """A place."""

            x: int
            y: int = 0
            words: Mapping[str, str] = field(default_factory=dict)
            secret: str = field(default="no", repr=False, compare=False)

            STEP = 2

            def __post_init__(self) -> None:
                if self.x < 0:
                    raise BadRequest("no")

            def __str__(self) -> str:
                return f"{self.x}:{self.y}"

        @dataclass(frozen=True, slots=True, **how)
        class Spot(Point):
            """A place with a name."""

            name: str = "here"
            tags: Mapping[str, str] = field(default_factory=dict)

            STEP = 3

        return Spot if inherits else Point

    return made(dataclasses.dataclass), made(frozen.dataclass)


@pytest.mark.parametrize("inherits", [False, True])
@pytest.mark.parametrize("kw_only", [True, False])
@pytest.mark.parametrize(
    "look",
    [
        lambda cls: inspect.signature(cls).parameters.keys(),
        lambda cls: [each.kind for each in inspect.signature(cls).parameters.values()],
        lambda cls: cls.__match_args__,
        lambda cls: {slot for base in cls.__mro__[:-1] for slot in base.__slots__},  # 3.10 repeats inherited ones
        lambda cls: (cls.__doc__, cls.__name__, cls.__qualname__, cls.__module__, cls.STEP),
        lambda cls: cls.__init__.__qualname__,
        lambda cls: [(each.name, each.repr, each.compare) for each in dataclasses.fields(cls)],
        dataclasses.is_dataclass,
        lambda cls: repr(cls(x=1, secret="s")),
        lambda cls: str(cls(x=1)),
        lambda cls: cls(x=1, y=2, secret="a") == cls(x=1, y=2),
        lambda cls: cls(x=1) == (1, 0, {}, "no"),
        lambda cls: cls(x=1) != cls(x=2),
        lambda cls: dataclasses.asdict(cls(x=1, words={"a": "b"})),
        lambda cls: repr(dataclasses.replace(cls(x=1), y=5)),
        lambda cls: cls(x=1).words is cls(x=1).words,
        lambda cls: repr(copy.deepcopy(cls(x=1, y=3))),
        lambda cls: hasattr(cls(x=1), "__dict__"),
    ],
)
def test_it_is_what_dataclasses_make(look: Any, *, kw_only: bool, inherits: bool) -> None:
    """Every attribute matches ``dataclasses``, also as the first access to a new class."""
    theirs, ours = both(kw_only=kw_only, inherits=inherits)

    assert look(theirs) == look(ours)


def _hash_of_words(cls: Any) -> Any:
    return hash(cls(x=1))


@pytest.mark.parametrize("inherits", [False, True])
@pytest.mark.parametrize(
    "do",
    [
        lambda cls: cls(),
        lambda cls: cls(x=1, z=1),
        lambda cls: cls(x=-1),
        lambda cls: setattr(cls(x=1), "x", 2),
        lambda cls: setattr(cls(x=1), "y", 2),
        lambda cls: delattr(cls(x=1), "x"),
        _hash_of_words,
        lambda cls: cls(x=1) < cls(x=2),
    ],
)
def test_it_refuses_what_dataclasses_refuse(do: Any, *, inherits: bool) -> None:
    """Every refused operation raises the same exception with the same message."""
    output = []
    for cls in both(kw_only=True, inherits=inherits):
        with pytest.raises((TypeError, BadRequest, FrozenInstanceError)) as error:
            do(cls)
        output.append((type(error.value), str(error.value).replace("both.<locals>.made.<locals>.", "")))

    assert output[0] == output[1]


def test_it_refuses_a_name_that_is_no_field() -> None:
    """An assignment to a name that is no field is refused.

    Classes of ``dataclasses`` fail here before Python 3.12, because they refer to the replaced class.
    """
    _, ours = both(kw_only=True)
    point = ours(x=1)

    with pytest.raises(FrozenInstanceError, match="z"):
        point.z = 1
    with pytest.raises(FrozenInstanceError, match="z"):
        del point.z


def test_it_may_be_generic() -> None:
    """A class may be generic. ``typing`` sets the original class on the instance if the instance permits it."""

    @frozen.dataclass(frozen=True, slots=True)
    class Box(Generic[T]):
        what: T

    assert Box[int](3).what == 3


def test_positional_only_where_declared() -> None:
    """Positional arguments work only without ``kw_only``."""
    assert 2 == both(kw_only=False)[1](1, 2).y
    with pytest.raises(TypeError):
        both(kw_only=True)[1](1, 2)


def test_equal_values_are_one_key() -> None:
    """Equal values have equal hashes."""
    assert 1 == len({Account(name="a", uid=1, host="h"), Account(name="a", uid=1, host="h")})


def test_it_can_be_sent_to_a_process_that_has_never_made_one() -> None:
    """A value can be unpickled in a process that never called ``__init__``."""
    sent = pickle.dumps(Account(name="a", uid=5, host="h"))
    there = f"import pickle; value = pickle.loads({sent!r}); print(value, hash(value) == hash(value), value == value)"

    done = subprocess.run([sys.executable, "-c", there], capture_output=True, text=True, check=False)

    assert "Account(name='a', uid=5, host='h') True True\n" == done.stdout, done.stderr


def test_many_threads_may_make_the_first_one() -> None:
    """Several threads may create the first instance. Each thread finds the methods, whichever thread generated them."""
    for _ in range(50):
        _, ours = both(kw_only=True)
        with ThreadPoolExecutor(8) as threads:
            made = list(threads.map(lambda each, ours=ours: repr(ours(x=each)), range(16)))
        assert [repr(ours(x=each)) for each in range(16)] == made


def test_nothing_is_written_before_it_is_needed() -> None:
    """No method is generated before its first use. That is the purpose of the module."""
    _, ours = both(kw_only=True)
    assert isinstance(vars(ours)["__init__"], frozen._Unwritten)

    ours(x=1)

    assert not isinstance(vars(ours)["__init__"], frozen._Unwritten)
    assert isinstance(vars(ours)["__eq__"], frozen._Unwritten)


def test_only_frozen_values_with_slots_are_made_so() -> None:
    """Only frozen classes with slots are supported.

    A type checker treats the decorator as ``dataclasses`` and accepts others.
    """
    with pytest.raises(TypeError, match="frozen"):
        frozen.dataclass(frozen=False, slots=True)


def test_every_value_of_the_house_can_be_written() -> None:
    """Methods can be generated for every such class of the package.

    An error of a class definition would otherwise appear at the first use of a method.
    """
    seen = 0
    root = Path(gpuqueue.__file__).parent
    for path in sorted(root.rglob("*.py")):
        if "from gpuqueue.lazy.frozen import dataclass" not in path.read_text():
            continue
        module = import_module(".".join(path.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__"))
        for cls in vars(module).values():
            if isinstance(cls, type) and cls.__module__ == module.__name__ and dataclasses.is_dataclass(cls):
                names = [each.name for each in dataclasses.fields(cls)]
                assert names == list(inspect.signature(cls).parameters)
                seen += 1
    assert seen > 90
