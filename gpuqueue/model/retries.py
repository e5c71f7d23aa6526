"""Retries: after which endings a job runs again, how often, and when it gets more memory. Pure."""

from __future__ import annotations

from enum import Enum

from gpuqueue.errors import BadRequest
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.text.sanitize import brief

#: Most retries that a job may have.
MOST_RETRIES = 100
#: How often a job runs again after a lack of device memory if its request does not say. ``memory_retry.lua`` has the
#: same number.
MEM_TIMES = 2


class RetryOn(str, Enum):
    """The endings of a run that allow a retry. All but FAILED and ANY are also values of EndingKind."""

    #: The run exited by itself with a code other than 0. Code 75 asks for a requeue, which is no failure.
    FAILED = "failed"
    #: A signal that gpuqueue did not send killed the run.
    SIGNALLED = "signalled"
    #: The run needed more memory than was available, or than it had requested.
    OUT_OF_MEMORY = "out_of_memory"
    #: The run reached its time limit.
    TIMED_OUT = "timed_out"
    #: The run could not be started.
    REFUSED = "refused"
    #: The run was lost, and the job has used up the reruns that every lost job gets.
    LOST = "lost"
    #: Any of these.
    ANY = "any"

    def __str__(self) -> str:
        return self.value


#: Other names of endings that users type.
ALIASES = {"oom": RetryOn.OUT_OF_MEMORY}
#: The default: endings after which another run may succeed.
DEFAULT_ON = (RetryOn.FAILED, RetryOn.SIGNALLED, RetryOn.REFUSED, RetryOn.LOST)


@dataclass(frozen=True, kw_only=True, slots=True)
class Retries:
    """At most ``times`` retries, after the endings ``on``. The pause before each retry doubles, up to one hour.

    ``mem_times`` is how often the job runs again, with more memory, after it died for lack of device memory; None is
    the default, MEM_TIMES. These runs are no retries: they are counted apart, and come first.
    """

    times: int = 0
    on: tuple[RetryOn, ...] = DEFAULT_ON
    mem_times: int | None = None

    def __post_init__(self) -> None:
        """Validate the fields.

        Raises:
            BadRequest: a field is of the wrong type or out of range.

        """
        if type(self.times) is not int or not 0 <= self.times <= MOST_RETRIES:
            raise BadRequest(f"retries must be a whole number from 0 to {MOST_RETRIES}, not {brief(self.times)}")
        most: object = self.mem_times
        if most is not None and (type(most) is not int or not 0 <= most <= MOST_RETRIES):
            raise BadRequest(f"mem_retries must be a whole number from 0 to {MOST_RETRIES}, not {brief(most)}")
        on: object = self.on
        if not isinstance(on, tuple) or not on or not all(isinstance(each, RetryOn) for each in on):
            raise BadRequest(f"retry_on must name at least one of {', '.join(RetryOn)}, not {brief(self.on)}")

    @property
    def most_mem_times(self) -> int:
        """Return how often the job runs again after a lack of device memory."""
        return MEM_TIMES if self.mem_times is None else self.mem_times

    @staticmethod
    def parse_on(text: str) -> tuple[RetryOn, ...]:
        """Return the endings that *text* names, such as ``failed,lost``.

        Raises:
            BadRequest: *text* names something else.

        """
        words = [word.strip() for word in text.split(",")]
        known = {**{each.value: each for each in RetryOn}, **ALIASES}
        for word in words:
            if word not in known:
                raise BadRequest(f"{brief(word)} is no ending to retry after: use one or more of {', '.join(RetryOn)}")
        return tuple(dict.fromkeys(known[word] for word in words))


NO_RETRIES = Retries()
