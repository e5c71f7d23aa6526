"""The commit of the code that runs: of a checkout, or of the checkout from which an archive was built."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from gpuqueue.model.job_spec import COMMIT
from gpuqueue.system.git_checkout import commit_of

#: The package, and the file in it that ``hatch_build.py`` adds to an archive.
PACKAGE, RECORD = Path(__file__).parents[1], "commit"


def commit_of_code(package: Path = PACKAGE) -> str | None:
    """Return the commit of the code in *package*, or None if nobody knows. Git is not called."""
    found = commit_of(package.parent)
    if found is None:
        with suppress(OSError, ValueError):
            found = (package / RECORD).read_text(encoding="ascii").strip()
    return found if found is not None and COMMIT.fullmatch(found) else None
