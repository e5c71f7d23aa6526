"""Where the memory that a job asks for came from, and what a worker reports about a lack of it. Pure."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING

from gpuqueue.errors import BadRequest
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.model.job_spec import ASKED
from gpuqueue.text.sanitize import brief

if TYPE_CHECKING:
    from gpuqueue.model.job_spec import JobSpec

#: How the notes about a lack of device memory begin.
OUT_OF_MEMORY = "out of memory"
#: What a note says where a job cannot ask for more.
NO_LARGER_DEVICE = "no device that the job may use gives more"
LIMITED = "a limit of the site lets it ask for no more"
#: What a note says where the job was not short of its own request.
TAKEN_BY_OTHERS = "because others took its memory"
#: Most runs that a text names. No rule uses as many.
MOST_RUNS = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Shortage:
    """The facts about a run that died for lack of device memory, on the device that was full.

    ``peak_bytes`` is the most that the run used there. ``tried_bytes`` is the size of the allocation that failed. Each
    is None if it is unknown. ``blamed`` names the others who had taken memory of the run, None if nobody had.
    """

    peak_bytes: int | None = None
    tried_bytes: int | None = None
    blamed: str | None = None


def with_granted(spec: JobSpec, mem_bytes: int) -> JobSpec:
    """Return *spec* with the memory that the queue gave the job after a lack of it; unchanged if that is the same.

    The store decides (``memory_retry.lua``): it knows the devices, the limits and the count.
    """
    if mem_bytes == spec.mem_bytes:
        return spec
    return replace(spec, mem_bytes=mem_bytes, mem_source=str(MemKind.OUT_OF_MEMORY))


class MemKind(str, Enum):
    """Who or what chose the memory of a job."""

    #: The submitter named it.
    ASKED = ASKED
    #: It follows from the peaks of earlier runs.
    LEARNED = "learned"
    #: It is the result of ``gpuqueue estimate``.
    ESTIMATE = "estimate"
    #: It is the default of the submitter, the site or the pool.
    DEFAULT = "default"
    #: The queue gave the job more after a run had died for lack of device memory.
    OUT_OF_MEMORY = "out_of_memory"

    def __str__(self) -> str:
        return self.value


class Signature(str, Enum):
    """What earlier runs have in common with a job, from the most exact to the coarsest."""

    #: Script, arguments, code, interpreter, and the device model if the job names one.
    EXACT = "exact"
    #: Script and all arguments.
    ARGUMENTS = "arguments"
    #: Script and those arguments that may have moved the peak.
    MOVING = "moving"
    #: Script and arguments but for one, a number along which the peaks lie on a line.
    LINE = "line"
    #: The script alone.
    SCRIPT = "script"

    def __str__(self) -> str:
        return self.value

    @property
    def words(self) -> str:
        """Return the signature in words, to follow ``12 runs``."""
        return _WORDS[self]


_OTHER_WORDS = {MemKind.ESTIMATE: "estimated by a dry run", MemKind.OUT_OF_MEMORY: "after out of memory"}
_WORDS = {
    Signature.EXACT: "with the same code and arguments",
    Signature.ARGUMENTS: "with the same arguments",
    Signature.MOVING: "with the same arguments, but for those that never moved the peak",
    Signature.LINE: "whose peaks lie on a line of one argument",
    Signature.SCRIPT: "of the script with any arguments",
}


@dataclass(frozen=True, slots=True)
class MemSource:
    """The source of a job's memory. ``runs`` and ``signature`` are those of a learned number, else None."""

    kind: MemKind
    runs: int | None = None
    signature: Signature | None = None

    def __post_init__(self) -> None:
        """Validate the fields.

        Raises:
            BadRequest: a learned number without runs and signature, or another one with them.

        """
        is_learned = self.kind is MemKind.LEARNED
        if is_learned != (self.runs is not None) or is_learned != (self.signature is not None):
            raise BadRequest("only a learned memory has runs and a signature")
        if self.runs is not None and not 1 <= self.runs <= MOST_RUNS:
            raise BadRequest(f"a memory is learned from 1 to {MOST_RUNS} runs, not {brief(self.runs)}")

    def __str__(self) -> str:
        """Return the form of a spec: ``asked``, ``default``, ``estimate``, ``learned 12 arguments``."""
        return f"{self.kind} {self.runs} {self.signature}" if self.kind is MemKind.LEARNED else str(self.kind)

    @property
    def words(self) -> str:
        """Return the source in words, as ``show`` prints it."""
        if self.runs is None or self.signature is None:
            return _OTHER_WORDS.get(self.kind, str(self.kind))
        return f"learned from {self.runs} run{'s' if self.runs > 1 else ''} {self.signature.words}"

    @classmethod
    def known(cls, text: str | None) -> MemSource | None:
        """Return the source that *text* names. None if there is no text, or if only a newer version knows it."""
        try:
            return None if text is None else cls.parse(text)
        except BadRequest:
            return None

    @classmethod
    def parse(cls, text: str) -> MemSource:
        """Parse the text that ``str`` returns.

        Raises:
            BadRequest: the text is no source of memory.

        """
        kind, *rest = text.split(" ")
        try:
            if not rest:
                return cls(MemKind(kind))
            runs, signature = rest
            return cls(MemKind(kind), int(runs), Signature(signature))
        except ValueError:
            raise BadRequest(f"{brief(text)} is no source of a job's memory") from None
