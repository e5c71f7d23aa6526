"""The names of the links to the log of a run."""

from __future__ import annotations

import pytest
from factories import make_spec

from gpuqueue.errors import BadRequest
from gpuqueue.model.output_file import check_members, pattern_of, place_of
from workers.shim.output_link import named


def pattern(text: str) -> str:
    """Return the pattern *text* of a job "a/b%" of ada."""
    return pattern_of(text, option="--output", name="a/b%", user="ada")


@pytest.mark.parametrize(
    ("text", "file"),
    [
        ("out.txt", "out.txt"),
        ("logs/%x-%j.out", "logs/a_b%-23.out"),
        ("%A_%a.%u", "17_5.ada"),
        ("%N/%j.out", "gpu1/23.out"),
        ("100%%.txt", "100%.txt"),
        ("%%j", "%j"),
    ],
)
def test_the_codes_of_slurm_name_the_file(text: str, file: str) -> None:
    """%x and %u are those of the submit, %j, %A and %a those of the run."""
    env = {"GPUQUEUE_JOB_ID": "23", "GPUQUEUE_ARRAY_JOB_ID": "17", "GPUQUEUE_ARRAY_INDEX": "5"}
    env["SLURMD_NODENAME"] = "gpu1"

    assert file == named(pattern(text), env)


def test_of_a_single_job_the_array_is_the_job() -> None:
    """%A of a job that is no member is its id, as in Slurm."""
    assert "23" == named(pattern("%A"), {"GPUQUEUE_JOB_ID": "23"})


@pytest.mark.parametrize("text", ["%t.out", "%3a", "x%"])
def test_an_unknown_code_is_refused(text: str) -> None:
    """A code that gpuqueue does not know would make a file of a strange name."""
    with pytest.raises(BadRequest, match="the codes are"):
        pattern(text)


@pytest.mark.parametrize(("text", "is_array"), [("out.txt", True), ("%A.txt", True), ("%a.txt", False)])
def test_each_member_has_a_file_of_its_own(text: str, *, is_array: bool) -> None:
    """Members of an array need %a or %j, and no other job has an index."""
    with pytest.raises(BadRequest):
        check_members(text, is_array=is_array)
    check_members("%j", is_array=is_array)


def test_the_fixed_part_of_a_name() -> None:
    """A name without a code of the run is known at submit; of others the directory may be."""
    assert ("logs", None) == place_of("logs/%j.txt")
    assert ("", None) == place_of("%j/x/out.txt")
    assert ("/", "a%j") == place_of("/a%%j")


@pytest.mark.parametrize("text", ["", "logs/", "a\0b", "x" * 2000, "%x"])
def test_a_job_without_a_file_name_is_refused(text: str) -> None:
    """What a program gives is checked as well."""
    with pytest.raises(BadRequest):
        make_spec(output=text)
