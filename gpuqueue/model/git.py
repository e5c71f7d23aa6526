"""Which commit of which branch a job was submitted from. Pure; ``system/git_checkout.py`` finds it out."""

from __future__ import annotations

from gpuqueue.errors import BadRequest
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import pattern
from gpuqueue.text.sanitize import brief

#: Longest name of a branch that is kept, in characters.
MAX_BRANCH = 255
#: A full hash: SHA-1 or SHA-256.
COMMIT = pattern(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkout:
    """What was checked out. ``branch`` is None where there is none; ``dirty`` where git did not say in time."""

    commit: str
    branch: str | None = None
    dirty: bool | None = None

    def __post_init__(self) -> None:
        """Refuse what git would not say.

        Raises:
            BadRequest: that is no commit, or no branch.

        """
        if not COMMIT.fullmatch(str(self.commit)):
            raise BadRequest(f"{brief(self.commit)} is no commit")
        if self.branch is not None and not 0 < len(str(self.branch)) <= MAX_BRANCH:
            raise BadRequest(f"{brief(self.branch)} is no branch")
        if self.dirty not in {None, True, False}:
            raise BadRequest(f"whether a checkout is dirty is true or false, not {brief(self.dirty)}")
