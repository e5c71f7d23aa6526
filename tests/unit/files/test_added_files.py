"""Files that are added to a snapshot and are not on the disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuqueue.files.errors import SnapshotTooLarge
from gpuqueue.files.limits import Limits
from gpuqueue.files.take import take_snapshot


def test_added_files_travel_from_the_directory_of_the_job(tmp_path: Path) -> None:
    """Their paths begin there, they replace files of the disk, and their contents are sent like those of files."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text("print(1)\n")
    (tmp_path / "z.txt").write_text("z")
    plain = take_snapshot(tmp_path / "src", root=tmp_path)
    found = take_snapshot(tmp_path / "src", root=tmp_path, added={".x/call": b"call", "train.py": b"new"})

    assert ["src/.x/call", "src/train.py", "z.txt"] == [each.path for each in found.manifest.entries]
    contents = {each.path: b"".join(found.blob(str(each.sha256))) for each in found.manifest.entries}
    assert {"src/.x/call": b"call", "src/train.py": b"new", "z.txt": b"z"} == contents
    assert (found.manifest.address(), found.manifest.text()) == (found.address, found.text)
    assert plain.address != found.address
    with pytest.raises(SnapshotTooLarge):
        take_snapshot(tmp_path, added={"large": bytes(11)}, limits=Limits(total_bytes=100, file_bytes=10, files=9))
