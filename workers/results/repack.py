"""Takes files out of an archive of results that was packed before. Standard library only.

Where all jobs have the account of the worker, a job may have put another file in its place, so nothing in it is
trusted.
"""

from __future__ import annotations

from collections.abc import Callable

from gpuqueue.snapshot.links import faulty_links
from gpuqueue.snapshot.names import LEFT_OUT_NOTES, quoted, target_fault
from workers.results.archive import Member, Writer, content, members, notes_of, skip
from workers.results.errors import PackFailed
from workers.results.left_out import LeftOut
from workers.results.walk import MOST_FILES
from workers.results.wanted import ArchiveRequest, Wanted


def repack(source: int, request: ArchiveRequest, output: int, progress: Callable[[], object]) -> list[str]:
    """Write the wanted members of the archive in the open regular file *source* to *output*.

    Return one line for each kind of thing that was left out, now or when the archive was made.

    Raises:
        PackFailed: the archive is damaged or was cut short; so is what was written.
        OSError: *output* cannot be written to, or *source* cannot be read.

    """
    wanted, left, writer = Wanted(request), LeftOut(), Writer(output, progress)
    before, notes = "", list[str]()
    for number, member in enumerate(members(source), start=1):
        progress()
        if member.path == LEFT_OUT_NOTES:
            notes += notes_of(source, member.size_bytes)
            continue
        if member.path <= before or number > MOST_FILES:
            raise PackFailed(f"the archive of the results is damaged: {quoted(member.path)} should not be there")
        before = member.path
        if (wanted.everything or wanted.has(member.path)) and _is_fine(member, left):
            writer.put(member.header())
            for part in content(source, member.size_bytes):
                writer.put(part)
        else:
            skip(source, member.size_bytes)
    notes = [*dict.fromkeys([*notes, *left.lines()])]
    writer.end(notes)
    return notes


def _is_fine(member: Member, left: LeftOut) -> bool:
    """Return whether a member can be passed on, and note it if not."""
    fault = target_fault(member.path) or next(
        (f"has the part {part!r}" for part in member.path.split("/") if part in {"", ".", ".."}), None
    )
    if fault is not None:
        left.name(member.path, fault)
    elif member.target is not None and (
        target_fault(member.target) is not None or faulty_links({member.path: member.target})
    ):
        left.link(member.path)
    else:
        return True
    return False
