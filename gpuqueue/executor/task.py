"""The decorator ``task``: a function that can also be submitted."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, overload

from gpuqueue.executor.calls import Call
from gpuqueue.executor.executor import Executor, check_options, in_order
from gpuqueue.executor.future import Future


@functools.cache
def _executor() -> Executor:
    """Return the executor of this process for all tasks, made when the first one is submitted."""
    return Executor()


class Task:
    """A function with the options of its jobs. A call of it runs here; :meth:`submit` and :meth:`map` make jobs."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        check_options(options)
        self._function, self._options = function, options
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function here."""
        return self._function(*args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle by name what a job can import, as a function is pickled."""
        return self._function.__qualname__ if self._is_importable() else super().__reduce_ex__(protocol)

    def submit(self, *args: Any, **kwargs: Any) -> Future:
        """Submit a call as a job, and return its future. Errors are those of ``Executor.submit``."""
        return _executor().submit_array([self._call(args, kwargs)], **self._options)[0]

    def map(self, *iterables: Iterable[Any], timeout: float | None = None) -> Iterator[Any]:
        """Submit a call for each tuple of the items of *iterables*, as ``Executor.map`` does, and yield the values."""
        calls = [self._call(row, {}) for row in zip(*iterables, strict=False)]
        return in_order(_executor().submit_array(calls, **self._options), timeout)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """Return a call of the task by its name, or of its function if that goes to the job by value."""
        return Call(self if self._is_importable() else self._function, args, kwargs)

    def _is_importable(self) -> bool:
        module: Any = sys.modules.get(self.__module__)
        return self.__module__ != "__main__" and getattr(module, self._function.__qualname__, None) is self


@overload
def task(function: Callable[..., Any], /) -> Task: ...
@overload
def task(**options: Any) -> Callable[[Callable[..., Any]], Task]: ...
def task(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a function a task, whose calls can be submitted to the queue.

        @gpuqueue.task(mem="6G")
        def train(lr): ...

        train(0.1)                # runs here
        train.submit(0.1)         # a future: runs in a job
        train.map([0.1, 0.01])    # an iterator: runs in an array

    *options* are arguments of ``client.jobs.submit``. All tasks of a process share an executor without a key.

    Raises:
        BadRequest: an option is unknown, or is one that the executor decides.

    """
    return (lambda each: Task(each, options)) if function is None else Task(function, options)
