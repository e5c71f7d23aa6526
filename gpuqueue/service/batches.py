"""Submits that wait at the same time: one thread makes them, and they go to the store in one round trip.

With a thread for each submit, the threads of fifty clients mostly waited for each other, and the store was asked as
often as there were submits. A submit is a generator here. It checks the caller and writes the line of the audit log,
yields what it wants to queue, is sent its job, and returns its answer. A submit that comes alone takes the same steps.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from gpuqueue.client.connection import Connection
from gpuqueue.errors import GpuQueueError, StoreUnreachable
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.job import Job
from gpuqueue.model.job_spec import JobSpec

T = TypeVar("T")

#: Most submits of one batch, and most batches at a time: one is prepared while the store writes the other.
MAX_SUBMITS, MAX_BATCHES = 16, 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Unqueued:
    """What a submit wants to queue. *on_cpu* is that of ``queue.requests.submit``."""

    spec: JobSpec
    nonce: str
    on_cpu: Callable[[], None]


#: What a submit is sent: its job. Without one it queues that by itself, with the same nonce; the store may not have
#: answered the first time.
Sent = Job | StoreUnreachable | None
Steps = Generator[Unqueued, Sent, T]


def alone(steps: Steps[T]) -> T:
    """Take the steps of one submit, and return its result."""
    try:
        next(steps)
        steps.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise RuntimeError("a submit queues one job")


class Batches:
    """Makes batches of the submits of one event loop. Use it there only."""

    def __init__(self, pool: ThreadPoolExecutor, connection: Callable[[], Connection]) -> None:
        """Take the steps in threads of *pool*. *connection* returns that of the current thread."""
        self._pool, self._connection = pool, connection
        self._waiting: deque[tuple[Callable[[], Steps[Any]], asyncio.Future[Any]]] = deque()
        self._running = 0

    async def run(self, begin: Callable[[], Steps[T]]) -> T:
        """Take the steps that *begin* returns, and return their result."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append((begin, answer))
        self._start()
        return await answer

    def _start(self) -> None:
        while self._waiting and self._running < MAX_BATCHES:
            batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_SUBMITS))]
            submits = [_Submit(begin) for begin, _ in batch]
            self._running += 1
            done = asyncio.get_running_loop().run_in_executor(self._pool, self._take_steps, submits)
            done.add_done_callback(partial(self._end, submits, [answer for _, answer in batch]))

    def _end(
        self, submits: Sequence[_Submit], answers: Sequence[asyncio.Future[Any]], done: asyncio.Future[None]
    ) -> None:
        self._running -= 1
        for submit, answer in zip(submits, answers, strict=True):
            error = done.exception() or submit.error
            if answer.done():  # the client has gone
                continue
            if error is None:
                answer.set_result(submit.result)
            else:
                answer.set_exception(error)
        self._start()

    def _take_steps(self, submits: Sequence[_Submit]) -> None:
        for submit in submits:
            submit.take(submit.begin)
        ready = [submit for submit in submits if submit.unqueued is not None]
        jobs = self._queued([submit.unqueued for submit in ready if submit.unqueued is not None])
        for submit, job in zip(ready, jobs, strict=True):
            submit.take(partial(submit.go_on, job))

    def _queued(self, unqueued: Sequence[Unqueued]) -> Sequence[Sent]:
        """Queue *unqueued* in one round trip, and return what to send to each submit."""
        if len(unqueued) > 1:
            connection = self._connection()
            sign = None if connection.signer is None else connection.signer.signed
            words = [item.spec for item in unqueued], [item.nonce for item in unqueued]
            try:
                return connection.queue.requests.submit_many(
                    *words, sign=sign, on_cpu=[item.on_cpu for item in unqueued]
                )
            except StoreUnreachable as error:
                return [error] * len(unqueued)
            except GpuQueueError:  # the submit reports why when it queues its job by itself
                pass
        return [None] * len(unqueued)


class _Submit:
    """One submit of a batch, and how far it is."""

    def __init__(self, begin: Callable[[], Steps[Any]]) -> None:
        self._begin = begin
        self._steps: Steps[Any] | None = None
        self.unqueued: Unqueued | None = None
        self.result: Any = None
        self.error: Exception | None = None

    def begin(self) -> Unqueued:
        """Take the first step."""
        self._steps = self._begin()
        return next(self._steps)

    def go_on(self, job: Sent) -> Unqueued:
        """Take the last step."""
        assert self._steps is not None  # noqa: S101 - it was begun
        return self._steps.send(job)

    def take(self, step: Callable[[], Unqueued]) -> None:
        """Take *step*, and note what it wants to queue, its result or its error."""
        self.unqueued = None
        try:
            self.unqueued = step()
        except StopIteration as end:
            self.result = end.value
        except Exception as error:  # noqa: BLE001 - raised where the submit is awaited
            self.error = error
