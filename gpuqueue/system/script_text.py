"""Judges the text of the script that a job starts: what of it cannot run, or would not do what its author expects.

Such a job would fail when its turn comes, or succeed without its work. The file may change until then, and so
``--anyway`` submits it.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable

from gpuqueue.errors import BadRequest
from gpuqueue.model import slurm_variables
from gpuqueue.model.job_request import JobRequest
from gpuqueue.model.job_spec import JobSpec
from gpuqueue.system import slurm_script
from gpuqueue.system.command_line import (
    BYTE_ORDER_MARK,
    OTHER_LINES,
    SBATCH,
    SHELLS,
    TASK_ID,
    UTF_16,
    StartedFile,
    first_line_of,
)
from gpuqueue.text.sanitize import plain


def check(
    started: StartedFile, text: bytes, spec: JobSpec, request: JobRequest, note: Callable[[str], None] | None
) -> None:
    """Check the script that a job with this *spec* starts; *text* is its first part. Call *note* with remarks.

    Raises:
        BadRequest: the script cannot run, or would do the wrong work, and *request* does not submit it anyway.

    """
    reader = started.reader or _reader_of(text)
    fault, remark = _line_ends(started, text, reader, "" if request.cwd is None else spec.cwd)
    faults, remarks = [fault], [remark]
    remarks += [
        f"{plain(started.path)}: its {mark.decode().strip()} lines are not read: write their options as #GPUQ lines, "
        "such as #GPUQ --mem 6G --time 2h"
        for mark in OTHER_LINES
        if mark in text
    ]
    if SBATCH.encode() in text or TASK_ID.encode() in text:
        is_read = slurm_variables.MARK in spec.env
        fault, more = slurm_script.judged(
            plain(started.path),
            text.removeprefix(BYTE_ORDER_MARK).decode("utf-8", "replace").replace("\r\n", "\n"),
            reader=reader if reader in SHELLS else None,
            known={*spec.env, *(("srun", *slurm_variables.names(spec.env)) if is_read else ())},
            is_read=is_read,
            is_array=spec.array is not None,
        )
        faults.append(fault)
        remarks += more
    for line in filter(None, remarks):
        if note is not None:
            note(line)
    if any(faults) and not request.anyway:
        raise BadRequest(f"{'; '.join(filter(None, faults))}; or submit it as it is with --anyway")


def _reader_of(text: bytes) -> str:
    """Return the name of the program that the first line of a script starts, empty if it names none."""
    names = [os.path.basename(word) for word in " ".join(first_line_of(text)).split()]  # noqa: PTH119 - as command_line
    return next((name for name in names if name != "env" and name[:1] != "-" and "=" not in name), "")


def _line_ends(started: StartedFile, text: bytes, reader: str, cwd: str) -> tuple[str | None, str | None]:
    r"""Return why a byte order mark or line ends keep a script from running, and a remark if they only disturb it.

    *cwd* is the directory of its path, empty for the current one. A ``\r`` within the first line ends a line, as on
    old Macs.
    """
    name, path = plain(started.path), shlex.quote(os.path.join(cwd, started.path))  # noqa: PTH118 - as command_line
    if text.startswith(UTF_16):
        repair = f"repair it with iconv -f UTF-16 -t UTF-8 {path} | sed 's/\\r$//' > {path}.new, and use that file"
        return f"{name} is UTF-16 text, which cannot run: {repair}", None
    first, has_mark = text.partition(b"\n")[0], text.startswith(BYTE_ORDER_MARK)
    is_mac = b"\r" in first.rstrip(b"\r")
    has_returns = is_mac or first.endswith(b"\r") or b"\r\n" in text
    commands = [r"1s/^\xEF\xBB\xBF//"] * has_mark + [r"s/\r/\n/g" if is_mac else r"s/\r$//"] * has_returns
    repair = f"repair it with sed -i '{'; '.join(commands)}' {path}"
    if started.reader is None and has_mark:
        return f"{name} begins with a byte order mark, so that it cannot run: {repair}", None
    if started.reader is None and b"\r" in first and first.startswith(b"#!"):
        program = plain(" ".join(first_line_of(text)))
        return f"{name} cannot run: its first line ends with \\r, and there is no '{program}\\r': {repair}", None
    if reader in SHELLS and commands:
        trouble = "ends its lines with \\r, as on Windows" if has_returns else "begins with a byte order mark"
        return None, f"warning: {name} {trouble}, which {reader} takes for a part of its words: {repair}"
    return None, None
