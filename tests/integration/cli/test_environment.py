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
    """The umask is read without setting it, which would affect all threads of the process for a moment."""
    before = os.umask(umask)
    try:
        assert [umask, umask] == [current_umask(), current_umask()]
    finally:
        os.umask(before)


@pytest.mark.parametrize("text", ["Name:\tpython\n", "Umask:\n", "Umask:\tzzz\n", None])
def test_a_kernel_without_the_umask_gives_the_default(tmp_path: Path, text: str | None) -> None:
    """If /proc does not have the umask, the result is 022, which all jobs had before the umask was recorded."""
    status = tmp_path / "status"
    if text is not None:
        status.write_text(text)

    assert 0o022 == current_umask(status)


@pytest.mark.parametrize("umask", [-1, 0o1000, "022", 2.0, True])
def test_what_is_no_umask_is_refused(umask: object) -> None:
    """An invalid umask is refused before the job is queued."""
    with pytest.raises(BadRequest, match="umask"):
        make_spec(umask=umask)


@pytest.mark.full
def test_a_job_makes_files_as_its_submitter_would(site: Site) -> None:
    """A job runs with its submitter's umask.

    In directories shared by a group, jobs used to create files that the group could not write.
    """
    site.start_recorder()
    site.start_worker()
    before = os.umask(0o007)
    try:
        job_id = int(site.cli("submit", "--mem", "1M", "--", "sh", "-c", "umask").stdout)
    finally:
        os.umask(before)

    site.until_recorded(job_id)
    assert "0007\n" == site.cli("logs", str(job_id)).stdout
