"""Brings the files of an archive into a directory: all that are whole, also if the archive is cut short."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

from gpuqueue.errors import BadRequest
from gpuqueue.model.run_files import LeftOut
from gpuqueue.results.archive import ArchiveReader, Member
from gpuqueue.results.target import Target
from gpuqueue.snapshot.errors import ArchiveCutShort, InvalidManifest, NoSuchName, NotWritable
from gpuqueue.snapshot.links import check_links
from gpuqueue.snapshot.stream import Source
from gpuqueue.text.sanitize import plain
from gpuqueue.text.units import format_bytes

#: What a user does after a part of the files has arrived.
_AGAIN = "run the same command again, which keeps them"


@dataclass(slots=True, kw_only=True)
class Received:
    """How many files and links are in the directory now, their size, and how many of them were there before."""

    files: int = 0
    size_bytes: int = 0
    skipped: int = 0
    left_out: list[LeftOut] = field(default_factory=list)
    #: What the packing has left out, in words.
    notes: tuple[str, ...] = ()


def receive(
    source: Source,
    directory: str,
    *,
    replace: bool,
    taken: Mapping[str, str] | None = None,
    seen: Callable[[int], None] | None = None,
) -> Received:
    """Write the files of the archive in *source* into *directory*, which is made once there is a file for it.

    The paths in *taken* are left out, each with its reason. *seen* is called with the number of bytes that have
    arrived. Links are made after all files.

    Raises:
        BadRequest: *directory* is a file.
        ArchiveRefused: the archive is damaged or has what no service of ours sends.
        ArchiveCutShort: the archive ended before its end; whole files stay.
        Refused: a file is there with another content and *replace* is false, or its name is taken; whole files stay.
        NotWritable: the disk is full, or refuses; whole files stay.

    """
    if os.path.lexists(directory) and not os.path.isdir(directory):
        raise BadRequest(f"{plain(directory)} is a file: name a directory with --to")
    with ExitStack() as stack:
        receiver = _Receiver(stack, directory, replace=replace, seen=seen or (lambda _: None))
        receiver.taken = taken or {}
        reader = ArchiveReader(source)
        try:
            try:
                for member in reader.members():
                    receiver.take(member, reader.content())
            except ArchiveCutShort as error:
                receiver.make_links()
                raise ArchiveCutShort(f"{error}. {receiver.arrived()}: {_AGAIN}") from None
            receiver.make_links()
            receiver.received.notes = reader.notes
        except NotWritable as error:
            raise NotWritable(f"{error}. {receiver.arrived()}: once that is solved, {_AGAIN}") from None
        return receiver.received


class _Receiver:
    def __init__(self, stack: ExitStack, directory: str, *, replace: bool, seen: Callable[[int], None]) -> None:
        self.received = Received()
        self._stack, self._directory, self._replace, self._seen = stack, directory, replace, seen
        self._opened: Target | None = None
        self._links: dict[str, str] = {}
        self._seen_bytes = 0
        self.taken: Mapping[str, str] = {}

    def take(self, member: Member, content: Iterable[bytes]) -> None:
        """Write a file, or note a link."""
        fault = member.fault or self.taken.get(member.path)
        if fault is not None:
            self._leave_out(member.path, fault)
        elif member.target is not None:
            self._links[member.path] = member.target
        else:
            chunks, size_bytes = self._counted(content), member.size_bytes
            try:
                is_new = self._target.put(member.path, size_bytes, chunks, executable=member.executable)
            except NoSuchName as error:
                self._leave_out(member.path, str(error))
            else:
                self._count(size_bytes, is_new=is_new)

    def make_links(self) -> None:
        """Make the links that stay inside, also by way of links that were there before."""
        try:
            check_links(self._links)
        except InvalidManifest as error:
            for path in self._links:
                self._leave_out(path, f"is a link, and no link was made: {error}")
            return
        new = [path for path, target in self._links.items() if self._make_link(path, target)]
        for path in new:
            if self._target.leads_out(path):
                self._target.remove(path)
                self._leave_out(path, "is a link that leads out by way of a link that was there before")
                self.received.files -= 1

    def arrived(self) -> str:
        """Return what is in the directory, in words."""
        if not self.received.files:
            return "Nothing has arrived"
        return f"{counted(self.received.files, self.received.size_bytes)}, arrived in {plain(self._directory)}"

    @property
    def _target(self) -> Target:
        if self._opened is None:
            self._opened = self._stack.enter_context(closing(Target(self._directory, replace=self._replace)))
        return self._opened

    def _make_link(self, path: str, target: str) -> bool:
        try:
            is_new = self._target.link(path, target)
        except NoSuchName as error:
            self._leave_out(path, str(error))
            return False
        self._count(0, is_new=is_new)
        return is_new

    def _counted(self, content: Iterable[bytes]) -> Iterator[bytes]:
        for chunk in content:
            self._seen_bytes += len(chunk)
            self._seen(self._seen_bytes)
            yield chunk

    def _count(self, size_bytes: int, *, is_new: bool) -> None:
        self.received.files += 1
        self.received.size_bytes += size_bytes
        self.received.skipped += not is_new

    def _leave_out(self, path: str, why: str) -> None:
        self.received.left_out.append(LeftOut(path=path, why=why))


def counted(files: int, size_bytes: int) -> str:
    """Return a number of files and their size in words: ``3 files, 1.2G``."""
    return f"{files} file{'' if files == 1 else 's'}, {format_bytes(size_bytes)}"
