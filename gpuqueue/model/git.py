"""The git commit and branch that a job was submitted from. Pure; ``gpuqueue/system/git_checkout.py`` reads them."""

from __future__ import annotations

from gpuqueue.errors import BadRequest
from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import pattern
from gpuqueue.text.sanitize import brief

#: Longest branch name, in characters. ``system/git_checkout.py`` cuts longer ones.
MAX_BRANCH = 255
#: A full commit hash, SHA-1 or SHA-256.
COMMIT = pattern(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkout:
    """The checked-out commit. ``branch`` is None without a branch, ``dirty`` is None if git did not answer in time."""

    commit: str
    branch: str | None = None
    dirty: bool | None = None

    def __post_init__(self) -> None:
        """Validate the fields.

        Raises:
            BadRequest: the commit, the branch or ``dirty`` is invalid.

        """
        if not COMMIT.fullmatch(str(self.commit)):
            raise BadRequest(f"{brief(self.commit)} is no commit")
        if self.branch is not None and not 0 < len(str(self.branch)) <= MAX_BRANCH:
            raise BadRequest(f"{brief(self.branch)} is no branch")
        if self.dirty not in {None, True, False}:
            raise BadRequest(f"dirty must be true or false, not {brief(self.dirty)}")
