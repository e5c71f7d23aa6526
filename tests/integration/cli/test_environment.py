from __future__ import annotations

import os
from pathlib import Path

import pytest
from factories import make_spec
from site_of_one import Site

from gpuqueue.errors import BadRequest
from gpuqueue.system.account import current_umask


@pytest.mark.parametrize("umask", [0o000, 0o027, 0o077])
def test_the_umask_is_read_without_changing_it(umask: int) -> None:
    """To read it the old way means to set it: for all threads of the process, and for a moment."""
    before = os.umask(umask)
    try:
        assert [umask, umask] == [current_umask(), current_umask()]
    finally:
        os.umask(before)


@pytest.mark.parametrize("text", ["Name:\tpython\n", "Umask:\n", "Umask:\tzzz\n", None])
def test_a_kernel_that_does_not_tell_gives_the_usual_one(tmp_path: Path, text: str | None) -> None:
    """As every job had it before."""
    status = tmp_path / "status"
    if text is not None:
        status.write_text(text)

    assert 0o022 == current_umask(status)


@pytest.mark.parametrize("umask", [-1, 0o1000, "022", 2.0, True])
def test_what_is_no_umask_is_refused(umask: object) -> None:
    """Before it stands in the queue."""
    with pytest.raises(BadRequest, match="umask"):
        make_spec(umask=umask)


@pytest.mark.full
def test_a_job_makes_files_as_its_submitter_would(site: Site) -> None:
    """A team that shares a directory by its group found files there that the group could not write."""
    site.start_recorder()
    site.start_worker()
    before = os.umask(0o007)
    try:
        job_id = int(site.cli("submit", "--mem", "1M", "--", "sh", "-c", "umask").stdout)
    finally:
        os.umask(before)

    site.until_recorded(job_id)
    assert "0007\n" == site.cli("logs", str(job_id)).stdout
