"""Makes the links to the log of a run that its submitter asked for. Runs in the job's first process, as the submitter.

A link, and no second copy: the log stays one file that is kept within its limit, and the link shows it as it grows.
Standard library only, but for the rule that submit shares.
"""

from __future__ import annotations

import os
import re

from gpuqueue.system.output_link import is_free
from workers.shim.not_started import why

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_CODE = re.compile(r"%(.)", re.DOTALL)


def make_links(outputs: Mapping[str, Any], env: Mapping[str, str]) -> None:
    """Make the links in the working directory. *outputs* has the pattern of each log, None for no link.

    A link that cannot be made stops no job: standard error says why.
    """
    for name, pattern in outputs.items():
        if pattern is None:
            continue
        path = named(pattern, env)
        try:
            link(path, f"{env['GPUQUEUE_RUN_DIR']}/{name}")
        except OSError as error:
            text = f"gpuqueue: {path} is no link to this output: {why(error, path)}\n"
            os.write(2, text.encode(errors="surrogateescape"))


def named(pattern: str, env: Mapping[str, str]) -> str:
    """Return the name of the link for the run with the environment *env* (see :mod:`gpuqueue.model.output_file`)."""
    job = env["GPUQUEUE_JOB_ID"]
    array, index = env.get("GPUQUEUE_ARRAY_JOB_ID", job), env.get("GPUQUEUE_ARRAY_INDEX", "")
    host = env.get("SLURMD_NODENAME") or os.uname().nodename
    words = {"j": job, "A": array, "a": index, "N": host, "%": "%"}
    return _CODE.sub(lambda match: words.get(match[1], match[0]), pattern)


def link(path: str, target: str) -> None:
    """Make *path* a link to *target*. It replaces the link to the log of another run, and nothing else.

    Raises:
        FileExistsError: something else is there.
        OSError: the link cannot be made.

    """
    try:
        os.symlink(target, path)
    except FileExistsError:
        if not is_free(path):
            raise
        new = f"{path}.{os.getpid()}"
        os.symlink(target, new)
        os.rename(new, path)
