"""Values whose methods are written when they are first needed differ in nothing from those of ``dataclasses``."""

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
from gpuqueue.model.job import Account

T = TypeVar("T")


def both(**how: bool) -> tuple[Any, Any]:
    """Return the same class, made by ``dataclasses`` and by us."""

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

        return Point

    return made(dataclasses.dataclass), made(frozen.dataclass)


@pytest.mark.parametrize("kw_only", [True, False])
@pytest.mark.parametrize(
    "look",
    [
        lambda cls: inspect.signature(cls).parameters.keys(),
        lambda cls: [each.kind for each in inspect.signature(cls).parameters.values()],
        lambda cls: cls.__match_args__,
        lambda cls: cls.__slots__,
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
def test_it_is_what_dataclasses_make(look: Any, *, kw_only: bool) -> None:
    """Whatever is looked up first, on a class that nothing was looked up on before."""
    theirs, ours = both(kw_only=kw_only)

    assert look(theirs) == look(ours)


def _hash_of_words(cls: Any) -> Any:
    return hash(cls(x=1))


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
def test_it_refuses_what_dataclasses_refuse(do: Any) -> None:
    """In the same words."""
    said = []
    for cls in both(kw_only=True):
        with pytest.raises((TypeError, BadRequest, FrozenInstanceError)) as error:
            do(cls)
        said.append((type(error.value), str(error.value).replace("both.<locals>.made.<locals>.", "")))

    assert said[0] == said[1]


def test_it_refuses_a_name_that_is_no_field() -> None:
    """There those of dataclasses stumble before Python 3.12: they look for the class that was replaced."""
    _, ours = both(kw_only=True)
    point = ours(x=1)

    with pytest.raises(FrozenInstanceError, match="z"):
        point.z = 1
    with pytest.raises(FrozenInstanceError, match="z"):
        del point.z


def test_it_may_be_generic() -> None:
    """``typing`` notes on the value what it was made as, where the value lets it."""

    @frozen.dataclass(frozen=True, slots=True)
    class Box(Generic[T]):
        what: T

    assert Box[int](3).what == 3


def test_positional_only_where_it_was_said() -> None:
    """``kw_only`` is kept."""
    assert 2 == both(kw_only=False)[1](1, 2).y
    with pytest.raises(TypeError):
        both(kw_only=True)[1](1, 2)


def test_equal_values_are_one_key() -> None:
    """Hashes are of what is in them."""
    assert 1 == len({Account(name="a", uid=1, host="h"), Account(name="a", uid=1, host="h")})


def test_it_can_be_sent_to_a_process_that_has_never_made_one() -> None:
    """Nothing calls ``__init__`` there."""
    sent = pickle.dumps(Account(name="a", uid=5, host="h"))
    there = f"import pickle; value = pickle.loads({sent!r}); print(value, hash(value) == hash(value), value == value)"

    done = subprocess.run([sys.executable, "-c", there], capture_output=True, text=True, check=False)

    assert "Account(name='a', uid=5, host='h') True True\n" == done.stdout, done.stderr


def test_many_threads_may_make_the_first_one() -> None:
    """Each finds the methods, whoever wrote them."""
    for _ in range(50):
        _, ours = both(kw_only=True)
        with ThreadPoolExecutor(8) as threads:
            made = list(threads.map(lambda each, ours=ours: repr(ours(x=each)), range(16)))
        assert [repr(ours(x=each)) for each in range(16)] == made


def test_nothing_is_written_before_it_is_needed() -> None:
    """Else all of this would be for nothing."""
    _, ours = both(kw_only=True)
    assert isinstance(vars(ours)["__init__"], frozen._Unwritten)

    ours(x=1)

    assert not isinstance(vars(ours)["__init__"], frozen._Unwritten)
    assert isinstance(vars(ours)["__eq__"], frozen._Unwritten)


def test_only_frozen_values_with_slots_are_made_so() -> None:
    """A type checker goes by ``dataclasses``, which makes others as well."""
    with pytest.raises(TypeError, match="frozen"):
        frozen.dataclass(frozen=False, slots=True)


def test_every_value_of_the_house_can_be_written() -> None:
    """What ``dataclasses`` refuses when a class is made would else come up when somebody compares two of them."""
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
