"""The words of a job's command line before the arguments of its script. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuqueue.model.job_spec import JobSpec

#: The field ``interpreter`` of a script that uv runs, and the start of its command line.
UV_INTERPRETER = "uv run"
UV_RUN = ("uv", "run", "--frozen")
#: The Python of the project, as uv finds it.
UV_PYTHON = "python"


def words_before_args(spec: JobSpec) -> int:
    """Return how many words of the command come before the arguments of its script.

    A script that is not executable follows the words of its first line, as in ``/bin/bash -e /home/ada/run.sh``.
    """
    if spec.script is not None and spec.interpreter is None:
        end = f"/{spec.script.rpartition('/')[2]}"
        for number, word in enumerate(spec.argv[:3], 1):
            if word.endswith(end):
                return number
    return args_start(spec.argv, spec.interpreter)


def args_start(argv: Sequence[str], interpreter: str | None) -> int:
    """Return how many words of *argv* come before the arguments of the script that *interpreter* runs.

    They are ``./run.sh``, ``PYTHON train.py`` or ``uv run --frozen [--project=DIR] python train.py``. A job without a
    script has one such word, its program.
    """
    if interpreter is None:
        return 1
    before = argv.index(UV_PYTHON) if interpreter == UV_INTERPRETER and UV_PYTHON in argv else 0
    return before + 2
