"""Tests of the choice of earlier runs: by signature, and by arguments that moved the peak."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from factories import make_spec
from hypothesis import given
from hypothesis import strategies as st

from gpuqueue.learning.past_run import PastRun, Proof, code_of
from gpuqueue.learning.signature import MOST, Lesson, Wanted, arguments_of, lesson_for, program_of, still_arguments
from gpuqueue.model.device import DeviceFilter, DeviceKind
from gpuqueue.model.mem_source import Signature
from gpuqueue.text.units import GIB, MIB

CODE = "c" * 40


def a_run(words: str, gib: float, **changes: Any) -> PastRun:
    """Return a run with these arguments and this peak."""
    defaults: dict[str, Any] = {"proof": Proof.PEAK, "kind": DeviceKind.GPU, "code": CODE, "interpreter": "/py"}
    return PastRun(bytes=int(gib * GIB), words=tuple(words.split()), **{**defaults, **changes})


def lesson(words: str, *runs: PastRun, **changes: Any) -> Lesson | None:
    """Return the lesson for a job with these arguments."""
    defaults: dict[str, Any] = {"code": CODE, "interpreter": "/py"}
    return lesson_for(Wanted(words=tuple(words.split()), **{**defaults, **changes}), runs)


def used(words: str, *runs: PastRun, **changes: Any) -> tuple[Signature, int | None, float] | None:
    """Return the signature that is used, the number of peaks, and the largest peak in GiB."""
    found = lesson(words, *runs, **changes)
    return (
        None
        if found is None
        else (found.signature, found.learned.peaks, round((found.learned.high_bytes or 0) / GIB, 6))
    )


# ---- the levels ------------------------------------------------------------------------------------------------------


def test_the_most_exact_signature_with_three_runs_is_used() -> None:
    """Other code, another interpreter and other arguments do not count while the exact signature has three runs."""
    others = [a_run("--lr 1", 9, code="d" * 40)] * 3, [a_run("--lr 1", 8, interpreter="/other")] * 3
    assert (Signature.EXACT, 3, 5.0) == used("--lr 1", *others[0], *others[1], *[a_run("--lr 1", 5)] * 3)


def test_the_number_of_devices_is_an_argument() -> None:
    """A model that is split over two devices needs twice as much on one; the number of devices moves its peak."""
    split = [a_run("--lr 1", 4, gpus=2)] * 3
    assert (Signature.ARGUMENTS, 3, 4.0) == used("--lr 1", *split, gpus=2, code=None)
    assert (Signature.SCRIPT, 3, 4.0) == used("--lr 1", *split, gpus=1, code=None)
    assert (Signature.ARGUMENTS, 3, 8.0) == used("--lr 1", *split, *[a_run("--lr 1", 8)] * 3, gpus=1, code=None)


def test_the_number_of_devices_of_a_copied_model_does_not_count() -> None:
    """A model that is copied to each device has the same peak on one and on two, so four are like them."""
    copied = [a_run("--lr 1", 4, gpus=2), a_run("--lr 1", 4, gpus=1), a_run("--lr 1", 4, gpus=2)]
    assert (Signature.MOVING, 3, 4.0) == used("--lr 1", *copied, gpus=4, code=None)


@pytest.mark.parametrize(
    "change", [{"code": "d" * 40}, {"code": None}, {"interpreter": "/other"}, {"environment": "jax"}]
)
def test_two_exact_runs_are_too_few(change: dict[str, Any]) -> None:
    """With fewer than three, those of the next signature are added."""
    runs = [a_run("--lr 1", 5), a_run("--lr 1", 5), a_run("--lr 1", 6, **change)]
    assert (Signature.ARGUMENTS, 3, 6.0) == used("--lr 1", *runs)


@pytest.mark.parametrize(
    ("argv", "interpreter"),
    [
        (("/py", "train.py", "--lr", "1"), "/py"),
        (("uv", "run", "--frozen", "--project=..", "python", "train.py", "--lr", "1"), "uv run"),
    ],
)
def test_a_job_is_compared_by_its_arguments_and_its_python(argv: tuple[str, ...], interpreter: str) -> None:
    """What runs the script is no argument, and the environment that the job names belongs to its Python."""
    spec = make_spec(argv=argv, script="train.py", interpreter=interpreter, environment="jax")
    found = Wanted.of(spec)
    assert (("--lr", "1"), interpreter, "jax") == (found.words, found.interpreter, found.environment)


def test_the_same_files_are_the_same_code_before_and_after_a_commit() -> None:
    """A commit changes how the files differ from the last commit, and not the files."""
    address, diff = "a" * 64, "b" * 64
    before, after = (code_of(f"{each}:src", None, dirty=None) for each in (f"{address}+{diff}", address))
    assert address == before == after


def test_code_that_is_not_known_is_not_the_same() -> None:
    """Without a commit or a snapshot there is no exact signature."""
    assert (Signature.ARGUMENTS, 3, 5.0) == used("--lr 1", *[a_run("--lr 1", 5, code=None)] * 3, code=None)


def test_a_named_device_model_is_part_of_the_exact_signature() -> None:
    """A job that names a model learns from runs on it, if there are three. A job that names none learns from all."""
    runs = [a_run("", 5, models=("NVIDIA A100 80GB",))] * 3 + [a_run("", 6, models=("Tesla T4",))]
    assert (Signature.EXACT, 3, 5.0) == used("", *runs, models=("a100",))
    assert (Signature.EXACT, 4, 6.0) == used("", *runs)
    assert (Signature.ARGUMENTS, 4, 6.0) == used("", *runs, models=("T4",))


def test_the_script_alone_is_the_last_resort() -> None:
    """Arguments that were never seen fall back to all runs of the script."""
    runs = [a_run("--model a", 2), a_run("--model b", 4), a_run("--model c", 8)]
    assert (Signature.SCRIPT, 3, 8.0) == used("--model d", *runs)


def test_without_three_runs_the_most_exact_run_is_used() -> None:
    """One exact run is more than one of other arguments."""
    assert (Signature.EXACT, 1, 5.0) == used("--batch 1", a_run("--batch 2", 9), a_run("--batch 1", 5))
    assert (Signature.SCRIPT, 1, 9.0) == used("--batch 1", a_run("--batch 2", 9))
    assert used("--batch 1") is None


def test_runs_with_the_same_arguments_come_before_any_number_of_others() -> None:
    """Regression: two runs of 21.4G lost against twenty newer ones of 2G with other arguments, which asked for 2.5G."""
    exact, others = [a_run("--batch 512", 21.4)] * 2, [a_run("--batch 16", 2)] * 40
    assert (Signature.EXACT, 2, 21.4) == used("--batch 512", *others, *exact)
    assert (Signature.ARGUMENTS, 1, 21.4) == used("--batch 512", *others, *exact[1:], code="d" * 40)
    assert (Signature.EXACT, 1, 2.0) == used("--batch 16", *exact * 10, *others[:1])


def test_coarser_runs_fill_up_to_three_and_push_no_exact_one_out() -> None:
    """Twenty newer runs of other code, or with another seed, add to the old exact peak. They do not replace it."""
    newer = [a_run("--seed 1", 5, code="d" * 40)] * 20
    assert (Signature.ARGUMENTS, 20, 9.0) == used("--seed 1", *newer, a_run("--seed 1", 9))
    seeds = [a_run(f"--seed {seed}", 5) for seed in range(20)]
    assert (Signature.MOVING, 20, 5.4) == used("--seed 99", *seeds, a_run("--seed 99", 5.4))


@pytest.mark.parametrize("proof", [Proof.DIED, Proof.AT_LEAST])
def test_exact_runs_that_show_only_a_bound_are_filled_up_by_other_arguments(proof: Proof) -> None:
    """A run that died with 2.5G says that it was too little, and the runs of the script may show how much is enough."""
    runs = [*[a_run("--batch 512", 22)] * 3, a_run("--batch 256", 2.5, proof=proof)]
    assert (Signature.SCRIPT, 3, 22.0) == used("--batch 256", *runs)
    larger = lesson("--batch 256", *runs[:3], a_run("--batch 256", 30, proof=proof))
    assert larger is not None
    assert larger.learned.need_bytes > 30 * GIB


def test_an_allocation_that_was_enough_is_not_raised_by_other_arguments() -> None:
    """A framework that fills its cap shows no peak, and needs no more than the cap all the same."""
    capped = a_run("--batch 16", 6, proof=Proof.CAPPED)
    found = lesson("--batch 16", *[a_run("--batch 512", 22)] * 20, capped)
    assert found is not None
    assert (Signature.EXACT, 6 * GIB) == (found.signature, found.learned.need_bytes)


def test_placeholders_of_a_sweep_match_any_value() -> None:
    """All members of an array ask for one number, which holds for each value that was seen."""
    runs = [a_run("--batch 1 --size s", 2), a_run("--batch 2 --size s", 4), a_run("--batch 8 --size m", 9)]
    runs += [a_run("--batch 4 --size s", 8)]
    assert (Signature.EXACT, 3, 8.0) == used("--batch {b} --size s", *runs, open=("{b}",))


# ---- kinds of memory -------------------------------------------------------------------------------------------------


def test_memory_of_different_kinds_does_not_mix() -> None:
    """Resident memory of processes says nothing about a GPU. The newest run shows what the job will use."""
    host, gpu = [a_run("", 1, kind=DeviceKind.CPU)] * 3, [a_run("", 5)] * 3
    assert (Signature.EXACT, 3, 5.0) == used("", *gpu, *host)
    assert (Signature.EXACT, 3, 1.0) == used("", *host, *gpu)
    assert (Signature.EXACT, 3, 5.0) == used("", *host, *gpu, device=DeviceFilter.GPU)
    assert (Signature.EXACT, 3, 1.0) == used("", *gpu, *host, device=DeviceFilter.CPU)
    assert used("", *host, device=DeviceFilter.GPU) is None


# ---- arguments that never moved the peak -----------------------------------------------------------------------------


def still(*runs: tuple[str, float]) -> frozenset[str]:
    """Return the arguments that never moved the peak in these runs."""
    return still_arguments([(arguments_of(words.split()), int(gib * GIB)) for words, gib in runs])


def test_an_argument_that_never_moved_the_peak_does_not_count() -> None:
    """A seed changes nothing; a batch size does."""
    runs = [("--seed 1 --batch 8", 2.0), ("--seed 2 --batch 8", 2.04), ("--seed 3 --batch 16", 4.0)]
    assert frozenset({"seed"}) == still(*runs)
    assert (Signature.MOVING, 3, 2.04) == used(
        "--seed 9 --batch 8", *(a_run(*each) for each in [*runs, ("--seed 4 --batch 8", 2.0)])
    )


def test_a_value_of_its_own_in_each_run_does_not_hide_the_batch_size() -> None:
    """A seed that differs in each run separates all peaks, but the batch size does so in fewer groups."""
    runs = [(f"--a-seed {number} --batch {8 + 8 * (number % 2)}", 2.0 + 2 * (number % 2)) for number in range(8)]
    assert frozenset({"a-seed"}) == still(*runs)


def test_arguments_that_changed_together_both_count() -> None:
    """If the learning rate changed with the batch size only, nothing is known about either."""
    assert frozenset() == still(("--lr 1 --batch 8", 2.0), ("--lr 2 --batch 16", 4.0))


def test_peaks_that_differ_by_themselves_clear_no_argument() -> None:
    """Two sizes with the same arguments: no argument is shown not to count."""
    assert frozenset() == still(("--seed 1", 2.0), ("--seed 1", 4.0), ("--seed 2", 2.0))


def test_an_argument_that_never_changed_counts() -> None:
    """Nothing is known about an argument with one value."""
    assert frozenset({"seed"}) == still(("--seed 1 --batch 8", 2.0), ("--seed 2 --batch 8", 2.0))


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 3))
def test_an_argument_that_moves_the_peak_counts(seed: int, moving: int, others: int) -> None:
    """Whatever else changes, no argument that moves the peak is taken for one that does not count.

    Each moves it by a factor of its own, so that no two changes cancel each other: the rule cannot see those.
    """
    rng, runs = Random(seed), []  # noqa: S311 - no secret
    for _ in range(40):
        args = {f"m{each}": rng.choice("12") for each in range(moving)}
        args |= {f"o{each}": rng.choice("123") for each in range(others)}
        size = GIB
        for each in range(moving):
            size *= int(args[f"m{each}"]) ** 2**each
        runs.append((args, size))
    assert not {name for name in still_arguments(runs) if name.startswith("m")}


def test_many_changing_arguments_all_count() -> None:
    """The search is bounded: with very many changing arguments none is cleared."""
    runs = [({f"a{each}": str((number >> each % 6) & 1) for each in range(40)}, GIB) for number in range(60)]
    assert frozenset() == still_arguments(runs)


# ---- command lines ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("--lr 1e-3 --amp --seed=1 data", {"lr": "1e-3", "amp": "", "seed": "1", "#0": "data"}),
        ("--shift -3 -v", {"shift": "-3", "v": ""}),
        ("model=large opt.lr=1", {"model": "large", "opt.lr": "1"}),
        ("--set a --set b", {"set": "a b"}),
        ("in.txt out.txt", {"#0": "in.txt", "#1": "out.txt"}),
        ("", {}),
    ],
)
def test_arguments_have_names(words: str, wanted: dict[str, str]) -> None:
    """Words are read as most programs would."""
    assert wanted == arguments_of(words.split())


@pytest.mark.parametrize(
    ("argv", "script", "wanted"),
    [
        (("/py", "train.py", "--lr", "1"), "train.py", "/home/ada/train.py"),
        (("/py", "../x/train.py"), "../x/train.py", "/home/x/train.py"),
        (("/py", "/abs/train.py"), "/abs/train.py", "/abs/train.py"),
        (("torchrun", "--nproc-per-node", "2", "train.py", "eval.py"), None, "/home/ada torchrun train.py"),
        (("python", "-m", "pkg.train", "--lr", "1"), None, "/home/ada python -m pkg.train"),
        (("bash", "-c", "a; b"), None, "/home/ada bash -c a; b"),
        (("./simulate", "3"), None, "/home/ada ./simulate"),
        (("/py", "caf\udce9.py"), "caf\udce9.py", "/home/ada/caf?.py"),
    ],
)
def test_the_program_of_a_command(argv: tuple[str, ...], script: str | None, wanted: str) -> None:
    """The program is a script's path, or the directory with the words that name what runs there."""
    assert wanted == program_of(argv, script, "/home/ada")


def test_a_program_has_a_bounded_length() -> None:
    """The end of a long path is kept, since it tells scripts apart."""
    assert "x/train.py" == program_of(("/py", "train.py"), "train.py", "/x" * 2000)[-10:]
    assert MOST == len(program_of(("bash", "-c", "é" * 4000), None, "/"))


def test_peaks_of_different_kinds_of_proof_count_together() -> None:
    """A run that died raises the number of its own arguments only."""
    runs = [a_run("--batch 64", 8, proof=Proof.DIED), *[a_run("--batch 8", 2)] * 3]
    small, large = lesson("--batch 8", *runs), lesson("--batch 64", *runs)
    assert small is not None
    assert large is not None
    assert (2 * GIB * 1.1 + 256 * MIB) == pytest.approx(small.learned.need_bytes, abs=2)
    assert (Signature.SCRIPT, 16 * GIB) == (large.signature, large.learned.need_bytes)
