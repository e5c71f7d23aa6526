"""Selects the earlier runs that are like a job, from the most exact signature to the coarsest. Pure.

The most exact signature with three runs is used; without one, the most exact with any run. An argument does not count
if runs differ in it and in no argument that counts, and no such difference moved the peak by more than 10 %.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.learning.past_run import PastRun, Proof, code_of
from gpuqueue.learning.program import arguments_of
from gpuqueue.learning.rule import SEVERAL, SEVERAL_FACTOR, Learned, learned
from gpuqueue.model.device import DeviceFilter, DeviceKind
from gpuqueue.model.job_spec import JobSpec
from gpuqueue.model.mem_source import Signature
from gpuqueue.model.script_args import words_before_args

#: The largest ratio of two peaks between which nothing moved. Smaller differences are within the margin of the rule:
#: twenty peaks of a steady program differ by as much as 8 %.
STILL = SEVERAL_FACTOR
#: The most arguments with several values for which runs can show that they do not count. With more, all count.
MOST_ARGUMENTS = 12
#: The name of the number of devices among the arguments. No argument has a name that begins with a space.
_GPUS = " gpus"


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """A job for which memory is to be learned: the fields of :class:`PastRun`, and its device kind.

    ``open`` are the placeholders in its ``words`` that the members of its array replace, such as ``{lr}``. ``models``
    are the device models that it names, as words of their names.
    """

    words: tuple[str, ...]
    open: tuple[str, ...] = ()
    code: str | None = None
    interpreter: str | None = None
    environment: str | None = None
    gpus: int = 1
    models: tuple[str, ...] = ()
    device: DeviceFilter | None = None

    @classmethod
    def of(cls, spec: JobSpec) -> Wanted:
        """Return what to compare with earlier runs for a job with this *spec*."""
        git, array = spec.git, spec.array
        names = () if array is None else ("index", *(axis.name for axis in array.axes))
        return cls(
            words=spec.argv[words_before_args(spec) :],
            open=tuple(f"{{{name}}}" for name in names),
            code=code_of(spec.snapshot, git.commit if git else None, dirty=git.dirty if git else None),
            interpreter=spec.interpreter,
            environment=spec.environment,
            gpus=spec.gpus,
            models=spec.placement.models,
            device=spec.device,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Lesson:
    """What the history teaches about a job, and by which signature."""

    signature: Signature
    learned: Learned

    @property
    def is_sure(self) -> bool:
        """Return whether at least three runs with the same arguments were measured well."""
        return self.learned.peaks >= SEVERAL and self.signature is not Signature.SCRIPT


def lesson_for(wanted: Wanted, runs: Sequence[PastRun], headroom_bytes: int = 0) -> Lesson | None:
    """Return what *runs* of the same program, newest first, teach about the job *wanted*, or None.

    *headroom_bytes* of a device are for no job.
    """
    runs = of_one_kind(wanted, runs)
    best: Lesson | None = None
    for signature, alike in levels(wanted, runs):
        found = learned(alike, headroom_bytes)
        if found is None:
            continue
        if found.peaks >= SEVERAL:
            return Lesson(signature=signature, learned=found)
        best = best or Lesson(signature=signature, learned=found)
    return best


def of_one_kind(wanted: Wanted, runs: Sequence[PastRun]) -> Sequence[PastRun]:
    """Return the runs on the kind of device that the job will get, judged by the newest run.

    On a CPU and on a simulated device, the resident memory of processes is measured, which says nothing about a GPU.
    """
    kinds = {
        DeviceFilter.CPU: {DeviceKind.CPU},
        DeviceFilter.GPU: {DeviceKind.GPU, DeviceKind.SIMULATED},
    }
    allowed = {*DeviceKind} if wanted.device is None else kinds.get(wanted.device, {*DeviceKind})
    kind = next((run.kind for run in runs if run.kind in allowed), None)
    return [run for run in runs if run.kind is kind]


def levels(wanted: Wanted, runs: Sequence[PastRun]) -> Iterator[tuple[Signature, Sequence[PastRun]]]:
    """Yield each signature with the runs that have it. Those with all arguments may come twice."""
    if not wanted.open:  # the usual case needs no reading of arguments
        same = [run for run in runs if (run.words, run.gpus) == (wanted.words, wanted.gpus)]
        yield from _with_all_arguments(wanted, same)
    asked = _arguments(wanted)
    read = [(run, _arguments(run)) for run in runs]
    anything = frozenset(name for name, value in asked.items() if any(each in value for each in wanted.open))
    yield from _with_all_arguments(wanted, [run for run, args in read if _agree(asked, args, anything)])
    still = still_arguments([(args, run.bytes) for run, args in read if run.proof is Proof.PEAK])
    yield Signature.MOVING, [run for run, args in read if _agree(asked, args, anything | still)]
    yield Signature.SCRIPT, runs


def _arguments(job: Wanted | PastRun) -> Mapping[str, str]:
    """Return the arguments of *job* by name. The number of its devices is one of them.

    A model that is split over its devices needs less on each if there are more, and a copied model the same on each.
    """
    return {**arguments_of(job.words), _GPUS: str(job.gpus)}


def _with_all_arguments(wanted: Wanted, same: Sequence[PastRun]) -> Iterator[tuple[Signature, Sequence[PastRun]]]:
    """Yield the two signatures with all arguments. The first one exists only if the code is known."""
    if wanted.code is not None:
        yield Signature.EXACT, [run for run in same if _is_exact(wanted, run)]
    yield Signature.ARGUMENTS, same


def _is_exact(wanted: Wanted, run: PastRun) -> bool:
    return (
        run.code == wanted.code
        and (run.interpreter, run.environment) == (wanted.interpreter, wanted.environment)
        and (not wanted.models or all(_is_one_of(wanted.models, name) for name in run.models))
    )


def _is_one_of(models: Iterable[str], name: str) -> bool:
    low = name.lower()
    return any(all(word in low for word in model.lower().split()) for model in models)


def _agree(one: Mapping[str, str], other: Mapping[str, str], but: frozenset[str]) -> bool:
    return all(one.get(name) == other.get(name) for name in one.keys() | other.keys() if name not in but)


def still_arguments(runs: Sequence[tuple[Mapping[str, str], int]]) -> frozenset[str]:
    """Return the names of the arguments that changed in *runs* and never moved the peak, in bytes.

    At first no argument that changed counts. While runs that agree in all that count have peaks apart, the argument
    that separates them best begins to count. In the end each argument that does not count must have changed between
    two runs that agree in all that count; else nothing is known about it, and it counts as well. If the only such runs
    differ in two arguments whose effects cancel, these are taken for ones that do not count.
    """
    changed = _changed([args for args, _ in runs])
    if len(changed) > MOST_ARGUMENTS:
        return frozenset()
    still = set(changed)
    while still and _apart(runs, changed - still)[0] > 0:
        still.remove(min(sorted(still), key=lambda name: _apart(runs, (changed - still) | {name})))
    while unproved := still - _proved(runs, changed - still, still):
        still -= unproved
    return frozenset(still)


def _changed(several: Sequence[Mapping[str, str]]) -> frozenset[str]:
    names = {name for args in several for name in args}
    return frozenset(name for name in names if len({args.get(name) for args in several}) > 1)


def _groups(
    runs: Sequence[tuple[Mapping[str, str], int]], counted: Iterable[str]
) -> Iterable[list[tuple[Mapping[str, str], int]]]:
    names = sorted(counted)
    groups: dict[tuple[str | None, ...], list[tuple[Mapping[str, str], int]]] = {}
    for args, size in runs:
        groups.setdefault(tuple(args.get(name) for name in names), []).append((args, size))
    return groups.values()


def _apart(runs: Sequence[tuple[Mapping[str, str], int]], counted: Iterable[str]) -> tuple[float, int]:
    """Return how far the peaks of runs that agree in *counted* are apart, beyond STILL, and the number of groups.

    A value of its own in each run, such as a seed, separates all runs. It must not win over one that does so in fewer
    groups.
    """
    total, groups = 0.0, list(_groups(runs, counted))
    for group in groups:
        sizes = [size for _, size in group]
        ratio = max(sizes) / max(1, min(sizes))
        total += (ratio - STILL) * len(group) if ratio > STILL else 0.0
    return total, len(groups)


def _proved(
    runs: Sequence[tuple[Mapping[str, str], int]], counted: Iterable[str], still: Iterable[str]
) -> frozenset[str]:
    """Return those of *still* that changed between runs that agree in *counted*."""
    groups = list(_groups(runs, counted))
    return frozenset(name for name in still if any(name in _changed([args for args, _ in group]) for group in groups))
