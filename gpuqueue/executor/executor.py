"""The executor: each call is a job, several calls are the members of an array."""

from __future__ import annotations

import concurrent.futures
import functools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, overload

from gpuqueue.client import Client
from gpuqueue.errors import BadRequest, JobNotFound, Refused
from gpuqueue.executor import calls as wire
from gpuqueue.executor import inside
from gpuqueue.executor.calls import Call
from gpuqueue.executor.submissions import About, KeptCalls, Submission, Submissions
from gpuqueue.executor.watcher import TRAVELLING, Future, Watcher
from gpuqueue.lazy.frozen import defaults_of
from gpuqueue.model import validation
from gpuqueue.model.array import Array
from gpuqueue.model.code_snapshot import CodeWith
from gpuqueue.model.job import Job, JobState
from gpuqueue.model.job_request import JobRequest
from gpuqueue.model.job_spec import MAX_NAME
from gpuqueue.system.command_line import working_directory
from gpuqueue.system.environment import given_variables
from gpuqueue.text.sanitize import name_of

#: How many of the newest jobs with a key are searched for one whose id was lost with its program.
MAX_LOST = 1000
#: Those that only an array has.
_OF_ARRAYS = frozenset({"at_once", "max_failures"})


class Executor(concurrent.futures.Executor):
    """Runs calls as jobs of the queue. It needs cloudpickle, the extra ``python``.

    Args:
        client: The queue is that of its settings. By default that of the settings of this process.
        key: Names the calls of this executor: each has the number of its submission, or its own key. A program that
            starts again with the same key finds the jobs that wait or run and the values of those that succeeded. Only
            the other calls are submitted, among them those that failed or were cancelled.
        directory: Where the calls and their results are while the code stays in its directory. By default ``calls`` in
            the state directory. The account that the jobs run as must be able to write there.
        options: Arguments of ``client.jobs.submit``, such as ``mem="6G"``, for all calls.

    Raises:
        GpuQueueError: cloudpickle is not installed.
        BadRequest: *key* is malformed, or an option is one that the executor decides.

    """

    def __init__(
        self, *, client: Client | None = None, key: str | None = None, directory: Path | None = None, **options: Any
    ) -> None:
        wire.check_installed()
        check_options(options)
        if key is not None:
            name_of("key", key)
        self._client = Client(None if client is None else client.settings)  # a lock of our own guards this one
        self._options = options
        place = self._client.settings.state_dir / "calls" if directory is None else Path(directory).absolute()
        self._submissions = Submissions(place, key)
        self._kept: KeptCalls | None = None
        self._watcher = Watcher(self._client.settings, keeps=key is not None)
        self._lock = threading.RLock()
        self._count = 0
        self._is_shut_down = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future:
        """Submit a call as a job, and return its future.

        Raises:
            BadRequest: the call cannot be pickled, or an option is malformed.
            GpuQueueError: as for ``client.jobs.submit``.

        """
        return self.submit_array([Call(fn, args, kwargs)])[0]

    def submit_array(self, calls: Sequence[Call], **options: Any) -> list[Future]:
        """Submit *calls* as one array, and return the future of each. A single call is a job without an array.

        *options* are those of this executor, for these calls only. Errors are those of :meth:`submit`.
        """
        check_options(options)
        return self._begun(calls, {**self._options, **options}, [wire.pickled(each) for each in calls])

    def map(
        self, fn: Callable[..., Any], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1
    ) -> Iterator[Any]:
        """Submit a call for each tuple of the items of *iterables*, as one array. Yield the values in their order.

        Args:
            fn: The function.
            iterables: Its arguments. The shortest one ends the map.
            timeout: The longest time to wait for a value, in seconds after this call. None means no limit.
            chunksize: How many calls one member of the array makes, one after the other.

        Raises:
            ValueError: *chunksize* is less than 1.
            TimeoutError: raised by the iterator after *timeout*. The jobs go on.

        """
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        rows = [*zip(*iterables, strict=False)]
        if chunksize == 1:
            return in_order(self.submit_array([Call(fn, row) for row in rows]), timeout)
        chunks = [rows[first : first + chunksize] for first in range(0, len(rows), chunksize)]
        pickled = [wire.pickled(Call(fn), chunk) for chunk in chunks]
        return chain.from_iterable(in_order(self._begun([Call(fn)] * len(chunks), self._options, pickled), timeout))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - as the base
        """Accept no further calls.

        Args:
            wait: Whether to wait until all jobs have ended. Otherwise they go on, also after the end of this program;
                an executor with a key finds them again.
            cancel_futures: Whether to cancel the jobs that have not started.

        """
        with self._lock:
            self._is_shut_down = True
        if cancel_futures:
            for each in self._watcher.open():
                if not each.running():
                    each.cancel()
        if wait:
            self._watcher.join()
            self._client.close()

    def _begun(self, calls: Sequence[Call], options: Mapping[str, Any], pickled: Sequence[bytes]) -> list[Future]:
        """Return the futures of *calls*: those under the key that are known, and those of a new submission."""
        with self._lock:
            if self._is_shut_down:
                raise RuntimeError("cannot schedule new futures after shutdown")
            names = [each.key or str(self._count + place) for place, each in enumerate(calls)]
            if self._submissions.key is not None and len({*names}) < len(names):
                raise BadRequest("two calls of an array have the same key: give each its own")
            self._count += len(calls)
            known = [self._known(name, call) for name, call in zip(names, calls, strict=True)]
            new = [place for place, each in enumerate(known) if each is None]
            futures = dict(zip(new, self._submitted(calls, names, new, options, pickled), strict=True))
            found = [futures[place] if each is None else each for place, each in enumerate(known)]
        self._watcher.add([each for each in found if not each.done()])
        return found

    def _submitted(
        self,
        calls: Sequence[Call],
        names: Sequence[str],
        places: Sequence[int],
        options: Mapping[str, Any],
        pickled: Sequence[bytes],
    ) -> list[Future]:
        """Submit those *calls* that are at *places*, and return their futures."""
        if not places:
            return []
        travels, is_far = self._travel(options)
        functions = tuple(calls[place].name for place in places)
        about = About(names=tuple(names[place] for place in places), functions=functions, travels=travels)
        submission = self._submissions.new(about)
        try:
            cwd = str(working_directory(options.get("cwd")))
            path = wire.module_path(cwd, travels=travels, is_far=is_far)
            content = wire.packed([pickled[place] for place in places], path)
            submission.write(content)
            values = [calls[place].values for place in places]
            request = _request(submission, values, options, content if travels else None, is_far=is_far)
            if self._submissions.key is not None:
                tags = (*request.tags, self._submissions.key)
                request = replace(request, dedupe=submission.dedupe, tags=tags)
            job = self._client.jobs.submit_request(request)
        except BaseException:
            if self._submissions.key is None:
                submission.remove()
            raise
        submission = submission.with_job(job.id)
        if self._kept is not None:
            self._kept.add(submission)
        return [self._future(submission, number) for number in range(len(places))]

    def _travel(self, options: Mapping[str, Any]) -> tuple[bool, bool]:
        """Return whether the code travels with a job, and whether it travels to another machine."""
        url, requested = self._client.service, options.get("snapshot")
        is_far = url is not None and not url.startswith("unix:")
        travels = is_far and self._client.settings.snapshot if requested is None else requested is not False
        return travels, is_far and travels

    def _future(self, submission: Submission, number: int) -> Future:
        return Future(submission, number, cancel=self._cancel, is_active=self._is_active)

    def _cancel(self, job: str) -> bool:
        """End *job*. Return False if it has ended."""
        with self._lock:
            try:
                self._client.jobs.cancel(job)
            except Refused:
                return False
            return True

    def _is_active(self, job: str) -> bool:
        with self._lock:
            return self._client.jobs.get(job).state.is_active

    def _known(self, name: str, call: Call) -> Future | None:
        """Return the future of a call that was submitted under this key before. None if it is to be submitted."""
        if self._submissions.key is None:
            return None
        if self._kept is None:
            self._kept = KeptCalls([each for each in map(self._with_job, self._submissions.known()) if each])
        found = self._kept.find(name, call.name)
        if found is None:
            return None
        submission, number = found
        future = self._watcher.find(submission.about.label(number)) or self._future(submission, number)
        if wire.has_value(submission.result(number)):
            return future if future.done() or future.settle() else None
        job = self._job(submission, number)
        is_there = job is not None and (not job.state.is_end or _is_to_fetch(submission, job))
        return future if is_there else None

    def _with_job(self, submission: Submission) -> Submission | None:
        """Return a *submission* under the key with its job; None if its program was ended before it was submitted."""
        if submission.about.job is not None:
            return submission
        tags = [str(self._submissions.key)]
        rows = self._client.history.folded(tags=tags, reverse=True, limit=MAX_LOST)
        for job in (*self._client.jobs.list(tags=tags), *(row.record.job for row in rows)):
            if job.spec.waits.dedupe == submission.dedupe:
                return submission.with_job(job.id)
        return None

    def _job(self, submission: Submission, number: int) -> Job | None:
        """Return the job of a call under the key, None if this queue does not have it."""
        try:
            whole = self._client.jobs.get(submission.about.job or 0)
            if whole.spec.waits.dedupe != submission.dedupe:  # it is one of another queue
                return None
            return self._client.jobs.get(submission.about.label(number)) if submission.about.is_array else whole
        except JobNotFound:
            return None


def in_order(futures: Sequence[Future], timeout_s: float | None) -> Iterator[Any]:
    """Return an iterator over the values of *futures* in their order, of which each is there *timeout_s* from now."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    return (each.result(None if deadline is None else deadline - time.monotonic()) for each in futures)


def _is_to_fetch(submission: Submission, job: Job) -> bool:
    return submission.about.travels and job.state is JobState.SUCCEEDED


def check_options(options: Mapping[str, Any]) -> None:
    """Check the names of *options*.

    Raises:
        BadRequest: one is no argument of a submit, or is decided by the executor.

    """
    known = defaults()
    for name in options:
        if name not in known:
            raise BadRequest(f"{name} is no option of an executor: there are {', '.join(sorted(known))}")


def _request(
    submission: Submission,
    values: Sequence[Mapping[str, str]],
    options: Mapping[str, Any],
    travelling: bytes | None,
    *,
    is_far: bool,
) -> JobRequest:
    """Return the request for a job with the calls of *submission*, whose content is *travelling* if the code does.

    *values* are those of each call.
    """
    about = submission.about
    given = {name: value for name, value in options.items() if about.is_array or name not in _OF_ARRAYS}
    function = about.functions[0]
    given.setdefault("name", function.rpartition(".")[2][:MAX_NAME])
    if not is_far and given.get("environment") is None:
        given.setdefault("python", sys.executable)
    words = [function, *(f"{name}={value}" for name, value in values[0].items())]
    if about.is_array:
        given["array"] = f"0-{len(about.names) - 1}"
        given.setdefault("max_failures", 0)  # a program that waits for all results would wait for held ones
    if about.is_array and values[0]:
        limits = {name: given.pop(name) for name in _OF_ARRAYS if given.get(name) is not None}
        limits = {name: validation.count(name, value) for name, value in limits.items()}
        array = Array.of_rows({name: [each[name] for each in values] for name in values[0]})
        given["array"] = replace(array, **limits)
        words[1:] = [f"{name}={{{name}}}" for name in values[0]]
    folder, script = str(submission.folder), inside.__file__
    if travelling is not None:
        folder, script = TRAVELLING, f"{TRAVELLING}/call.py"
        content = {script: Path(inside.__file__).read_bytes(), f"{TRAVELLING}/{inside.CALLS}": travelling}
        requested = given.get("snapshot")
        root = None if requested is None or requested is True else os.fspath(requested)
        given["snapshot"] = CodeWith(content, root)
        given["keep"] = (*given.get("keep", ()), f"/{TRAVELLING}/*{inside.RESULT}")
    env = {**given_variables(given.pop("env", None)), inside.FOLDER: folder}
    return JobRequest(script, words, env=env, **given)


#: The fields of a request that the executor decides.
_OURS = frozenset({"command", "args", "array", "sweep", "each_line", "dedupe", "given_in", "probe"})


def defaults() -> Mapping[str, Any]:
    """Return the names of the options with their defaults."""
    return {name: default for name, default in defaults_of(JobRequest).items() if name not in _OURS}


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
