"""After which endings a job runs once more, and how often. Pure."""

from __future__ import annotations

from enum import Enum

from gpuqueue.errors import BadRequest
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.text.sanitize import brief

#: Most retries that a job may have.
MOST_RETRIES = 100


class RetryOn(str, Enum):
    """How a run must have ended for its job to be tried again; all but the first and last are those of EndingKind."""

    #: It exited by itself, with another code than 0 (75 asks to be requeued, which is no failure).
    FAILED = "failed"
    #: A signal that gpuqueue did not send killed it.
    SIGNALLED = "signalled"
    #: It took more memory than there was, or than it had asked for.
    OUT_OF_MEMORY = "out_of_memory"
    #: It reached its time limit.
    TIMED_OUT = "timed_out"
    #: It could not be started.
    REFUSED = "refused"
    #: It was lost, and more often than a job is run again for that anyway.
    LOST = "lost"
    #: Any of these.
    ANY = "any"

    def __str__(self) -> str:
        return self.value


#: After which endings a job is tried again where nothing is said: those that another try might change.
DEFAULT_ON = (RetryOn.FAILED, RetryOn.SIGNALLED, RetryOn.LOST)


@dataclass(frozen=True, kw_only=True, slots=True)
class Retries:
    """At most ``times`` further runs, after the endings ``on``. The pause before each is twice as long as the last."""

    times: int = 0
    on: tuple[RetryOn, ...] = DEFAULT_ON

    def __post_init__(self) -> None:
        """Refuse what could not be counted.

        Raises:
            BadRequest: a field makes no sense.

        """
        if type(self.times) is not int or not 0 <= self.times <= MOST_RETRIES:
            raise BadRequest(f"retries must be a whole number from 0 to {MOST_RETRIES}, not {brief(self.times)}")
        on: object = self.on
        if not isinstance(on, tuple) or not on or not all(isinstance(each, RetryOn) for each in on):
            raise BadRequest(f"retry_on must name at least one of {', '.join(RetryOn)}, not {brief(self.on)}")

    @staticmethod
    def parse_on(text: str) -> tuple[RetryOn, ...]:
        """Return the endings that *text* such as ``failed,lost`` names.

        Raises:
            BadRequest: it names something else.

        """
        words = [word.strip() for word in text.split(",")]
        known = {each.value: each for each in RetryOn}
        for word in words:
            if word not in known:
                raise BadRequest(f"{brief(word)} is nothing to retry after: one or more of {', '.join(RetryOn)}")
        return tuple(dict.fromkeys(known[word] for word in words))


NO_RETRIES = Retries()
