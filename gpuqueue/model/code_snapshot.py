"""The snapshot of a job's code: how a spec names it, and how it is listed."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from gpuqueue.errors import BadRequest
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import pattern
from gpuqueue.text.sanitize import brief

#: An address is the SHA-256 of the manifest, in hexadecimal digits.
ADDRESS = pattern(r"[0-9a-f]{64}")
#: What a user types: an address, or its first digits.
_WORD = pattern(r"[0-9a-f]{6,64}")


@dataclass(frozen=True, slots=True)
class CodeSnapshot:
    """A snapshot and the directory within it where the job starts: ``.`` for the top, or a relative POSIX path.

    ``diff`` is the SHA-256 of the text that says how the snapshot differs from the commit that it was taken from.
    """

    address: str
    directory: str = "."
    diff: str | None = None

    def __post_init__(self) -> None:
        """Validate the fields.

        Raises:
            BadRequest: the address is not 64 hexadecimal digits, or the directory is not within the snapshot.

        """
        for each in (self.address, self.diff):
            if each is not None and not ADDRESS.fullmatch(each):
                raise BadRequest(f"{brief(each)} is no address of a snapshot: it has 64 hexadecimal digits")
        parts = self.directory.split("/")
        is_shown = self.directory.isprintable() and "\\" not in self.directory
        if self.directory != "." and (not is_shown or any(part in {"", ".", ".."} for part in parts)):
            raise BadRequest(f"{brief(self.directory)} is no directory within a snapshot")

    def __str__(self) -> str:
        return f"{self.address}{'' if self.diff is None else f'+{self.diff}'}:{self.directory}"

    @classmethod
    def parse(cls, text: str) -> CodeSnapshot:
        """Parse ``ADDRESS:DIRECTORY`` or ``ADDRESS+DIFF:DIRECTORY``, the forms that ``str`` returns.

        Raises:
            BadRequest: the address or the directory is invalid.

        """
        names, _, directory = text.partition(":")
        address, plus, diff = names.partition("+")
        return cls(address, directory, diff if plus else None)


@dataclass(frozen=True, slots=True)
class CodeWith:
    """The code of a directory (None: as without one), and *files* that are added: their content by their path.

    A path is relative to the working directory of the job.
    """

    files: Mapping[str, bytes]
    directory: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredSnapshot:
    """A snapshot that an account has stored. ``jobs`` are the names of its jobs that need it and have not ended."""

    address: str
    files: int
    size_bytes: int
    used_at: datetime
    jobs: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class DeletedSnapshot:
    """A snapshot that was deleted, and how many bytes of the disk that gave back: those that nobody else has."""

    address: str
    freed_bytes: int


def address_word(word: str) -> str:
    """Return *word*, the first digits of an address or all of it.

    Raises:
        BadRequest: it has other characters, or is too short.

    """
    if not _WORD.fullmatch(str(word)):
        raise BadRequest(f"{brief(word)} is no address of a snapshot: give at least 6 of its hexadecimal digits")
    return word
