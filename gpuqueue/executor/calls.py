"""Calls and their results as bytes: what goes to a job, and what comes back. :mod:`.inside` is the other end."""

from __future__ import annotations

import functools
import io
import json
import os
import pickle
import sys
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import field
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from types import CodeType
from typing import Any

from gpuqueue.errors import BadRequest, GpuQueueError, NoResult, install_extra
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.text.sanitize import short

#: The Python that unpickles a call must be of the version that pickled it: bytecode differs between versions.
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"


@dataclass(frozen=True, slots=True)
class Call:
    """A function and its arguments. *key* names the call for an executor with a key; by default its number does.

    *values* are what people see of it beside the function: as of a member of a sweep. All calls of an array have values
    of the same names.
    """

    fn: Callable[..., Any]
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    key: str | None = None
    values: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The module and the name of the function. For the main program, the name of its file in place of a module."""
        fn = self.fn
        while isinstance(fn, functools.partial):
            fn = fn.func
        name = getattr(fn, "__qualname__", type(fn).__qualname__)
        module = getattr(fn, "__module__", None)
        if module == "__main__":
            module = Path(getattr(sys.modules["__main__"], "__file__", None) or "main").stem
        return f"{module}.{name}" if module else name


class InsideJob(Exception):
    """The cause of an error that comes from a job: its traceback there, or the end of the job's log."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


def check_installed() -> None:
    """Check that cloudpickle is installed.

    Raises:
        GpuQueueError: it is not.

    """
    if find_spec("cloudpickle") is None:
        raise GpuQueueError(f"functions travel by cloudpickle, which is not installed: {install_extra('python')}")


def pickled(call: Call, many: Sequence[Sequence[Any]] | None = None) -> bytes:
    """Return *call* as bytes. With *many*, its function is called with each of these arguments, and returns a list.

    Raises:
        BadRequest: the function or an argument cannot be pickled.

    """
    calls = [(tuple(call.args), dict(call.kwargs))] if many is None else [(tuple(each), {}) for each in many]
    try:
        with io.BytesIO() as file:
            _pickler()(file, protocol=pickle.HIGHEST_PROTOCOL).dump((call.fn, calls, many is None))
            found = file.getvalue()
    except Exception as error:
        why = short(str(error) or type(error).__name__, 200)
        raise BadRequest(
            f"the call of {call.name} cannot be sent to a job, since it cannot be pickled: {why}"
        ) from error
    return found


@functools.cache
def _pickler() -> Any:
    """Return the pickler of cloudpickle, but code has the name of its file: a traceback from a job shows its lines."""
    from cloudpickle import Pickler  # noqa: PLC0415 - an extra, and slow to import

    reduce = Pickler.dispatch_table[CodeType]

    def with_file(code: CodeType) -> Any:
        make, parts = reduce(code)
        return make, tuple(code.co_filename if each == "<dynamic-code>" else each for each in parts)

    table = ChainMap({CodeType: with_file}, Pickler.dispatch_table)
    return type("PicklerWithFiles", (Pickler,), {"dispatch_table": table})


def packed(calls: Sequence[bytes], path: Sequence[str]) -> bytes:
    """Return the file of pickled *calls*, which are loaded with *path* as the first entries of ``sys.path``."""
    sizes = [len(each) for each in calls]
    starts = [0, *accumulate(sizes)][:-1]
    head = {"python": PYTHON, "path": [*path], "starts": starts, "sizes": sizes}
    return b"".join([json.dumps(head).encode(), b"\n", *calls])


def module_path(cwd: str, *, travels: bool, is_far: bool) -> list[str]:
    """Return the entries of ``sys.path`` for a job in *cwd*, those below it relative if the code *travels*.

    The libraries of this Python are left out for a job on another machine (*is_far*), which has its own.
    """
    found: list[str] = []
    for entry in map(os.path.abspath, sys.path):
        is_library = any(Path(entry).is_relative_to(each) for each in (sys.prefix, sys.base_prefix))
        if travels and not is_library and Path(entry).is_relative_to(cwd):
            found.append(os.path.relpath(entry, cwd))
        elif not is_far:
            found.append(entry)
    return found


def has_value(path: Path) -> bool:
    """Return whether the file *path* is there and has the value of a call."""
    with suppress(OSError, ValueError), path.open("rb") as file:
        return bool(json.loads(file.readline()).get("ok"))
    return False


def settle(future: Future[Any], path: Path, job: str) -> bool:
    """Give *future* what the file *path* holds, a value or an exception. Return False if there is no such file."""
    try:
        line, _, body = path.read_bytes().partition(b"\n")
    except FileNotFoundError:
        return False
    head = json.loads(line)
    with suppress(InvalidStateError):  # it was cancelled
        if not head.get("ok"):
            future.set_exception(_error(head, body, job))
            return True
        try:
            value = pickle.loads(body)  # noqa: S301 - written by a job of this account
        except Exception as error:  # noqa: BLE001 - whatever unpickling raises belongs to who asks for the value
            fault = NoResult(f"the result of job {job} cannot be loaded here: {error}", job)
            fault.__cause__ = error
            future.set_exception(fault)
        else:
            future.set_result(value)
    return True


def _error(head: Mapping[str, Any], body: bytes, job: str) -> BaseException:
    """Return the exception of a call, or an error with its text if it cannot be pickled."""
    error: BaseException = NoResult(f"job {job} has no result: {head['fault']}", job)
    if body:
        with suppress(Exception):  # an exception whose class takes other arguments than it stores
            error = pickle.loads(body)  # noqa: S301 - as in settle
    if "trace" in head:
        error.__cause__ = InsideJob(head["trace"])
    return error
