"""Tests of the line about files that do not travel with the code of a job."""

from __future__ import annotations

import pytest

from gpuqueue.client.snapshots import ignored_line
from gpuqueue.files.take import IgnoredFiles
from gpuqueue.text.units import KIB, MIB

FILES = (("data/train.bin", 2 * MIB), ("data/a\x1bb", 3 * KIB), ("c", 2), ("d", 1))


@pytest.mark.parametrize(
    ("ignored", "line"),
    [
        (IgnoredFiles(files=FILES[:1]), "1 ignored file stays here: data/train.bin 2M"),
        (IgnoredFiles(files=FILES[:3]), "3 ignored files stay here: data/train.bin 2M, data/a\ufffdb 3K, c 2B"),
        (
            IgnoredFiles(files=FILES, is_all=False),
            "4 or more ignored files stay here: data/train.bin 2M, data/a\ufffdb 3K, c 2B, …",
        ),
        (IgnoredFiles(files=FILES[:1], is_all=False), "1 or more ignored files stay here: data/train.bin 2M"),
    ],
)
def test_the_largest_files_are_named_with_their_sizes(ignored: IgnoredFiles, line: str) -> None:
    """The submitter sees at once whether data is among them. Names control no terminal."""
    assert line == ignored_line(ignored)
