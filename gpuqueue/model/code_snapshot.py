"""The snapshot of a job's code, as a spec names it: the address of its manifest, and the job's directory within it."""

from __future__ import annotations

from gpuqueue.errors import BadRequest
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import pattern
from gpuqueue.text.sanitize import brief

#: An address is the SHA-256 of the manifest, in hexadecimal digits.
ADDRESS = pattern(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class CodeSnapshot:
    """A snapshot and the directory within it where the job starts: ``.`` for the top, or a relative POSIX path."""

    address: str
    directory: str = "."

    def __post_init__(self) -> None:
        """Validate the fields.

        Raises:
            BadRequest: the address is not 64 hexadecimal digits, or the directory is not within the snapshot.

        """
        if not ADDRESS.fullmatch(self.address):
            raise BadRequest(f"{brief(self.address)} is no address of a snapshot: it has 64 hexadecimal digits")
        parts = self.directory.split("/")
        is_shown = self.directory.isprintable() and "\\" not in self.directory
        if self.directory != "." and (not is_shown or any(part in {"", ".", ".."} for part in parts)):
            raise BadRequest(f"{brief(self.directory)} is no directory within a snapshot")

    def __str__(self) -> str:
        return f"{self.address}:{self.directory}"

    @classmethod
    def parse(cls, text: str) -> CodeSnapshot:
        """Parse ``ADDRESS:DIRECTORY``, the form that ``str`` returns.

        Raises:
            BadRequest: the address or the directory is invalid.

        """
        address, _, directory = text.partition(":")
        return cls(address, directory)
