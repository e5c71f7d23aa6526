"""Selects the earlier runs that are like a job, from the most exact signature to the coarsest. Pure.

The most exact runs come first, however few and however old they are (:func:`evidence`). A coarser signature only fills
up to three runs, and other arguments count only if no run with the job's own shows a need. An argument does not count
if runs differ in it and in no argument that counts, and no such difference moved the peak by more than 10 %. Where the
peaks lie on a line of a numeric argument (:mod:`gpuqueue.learning.line`), the line comes before the script alone.

For the utilisation, runs count that were alone on their devices (:func:`gpuqueue.learning.past_run.utilisation_of`), in
the same order. Of the first 20 the median is taken: a mean would follow a single run that waited for its data.
"""

from __future__ import annotations

import os.path
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

from gpuqueue.lazy.frozen import dataclass
from gpuqueue.lazy.imports import later
from gpuqueue.learning.past_run import PastRun, Proof, code_of
from gpuqueue.learning.rule import LAST, SEVERAL, SEVERAL_FACTOR, Learned, learned
from gpuqueue.model.device import DeviceFilter, DeviceKind
from gpuqueue.model.job_spec import JobSpec
from gpuqueue.model.mem_source import Signature
from gpuqueue.model.script_args import args_start

if TYPE_CHECKING:
    from gpuqueue.learning import line
    from gpuqueue.learning.line import Line
else:
    line = later("gpuqueue.learning.line")

#: The largest ratio of two peaks between which nothing moved. Smaller differences are within the margin of the rule:
#: twenty peaks of a steady program differ by as much as 8 %.
STILL = SEVERAL_FACTOR
#: The most arguments with several values for which runs can show that they do not count. With more, all count.
MOST_ARGUMENTS = 12
#: The name of the number of devices among the arguments. No argument has a name that begins with a space.
_GPUS = " gpus"
#: Longest program that the history stores, in characters. PostgreSQL refuses index entries above 2704 bytes, and a
#: character has at most four. Paths differ at their ends, so the end is kept.
MOST = 255
#: Options after which an interpreter takes the program itself, as in ``python -m train``.
_NAMING = frozenset({"-m", "--module", "-c"})
#: Ends of a word that names the file that a launcher runs, as in ``torchrun --nproc-per-node 2 train.py``.
_FILES = (".py", ".sh", ".jl", ".r", ".lua")
#: What a run proves if it shows an allocation that is enough. The others show only what is not.
_NEEDS = frozenset({Proof.PEAK, Proof.CAPPED})


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
            words=spec.argv[args_start(spec.argv, spec.interpreter) :],
            open=tuple(f"{{{name}}}" for name in names),
            code=code_of(spec.snapshot, git.commit if git else None, dirty=git.dirty if git else None),
            interpreter=spec.interpreter,
            environment=spec.environment or spec.container,
            gpus=spec.gpus,
            models=spec.placement.models,
            device=spec.device,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Lesson:
    """What the history teaches about a job, and by which signature. ``line`` is that of the signature ``line``."""

    signature: Signature
    learned: Learned
    line: Line | None = None

    @property
    def is_sure(self) -> bool:
        """Return whether at least three runs with the same arguments were measured well."""
        return self.learned.peaks >= SEVERAL and self.signature not in {Signature.LINE, Signature.SCRIPT}

    @property
    def advises_less(self) -> bool:
        """Return whether a smaller request may be advised: not by arguments of other jobs that moved the peak."""
        low, high = self.learned.low_bytes or 0, self.learned.high_bytes or 0
        is_known = self.signature is not Signature.SCRIPT or high <= STILL * low
        return self.learned.peaks >= SEVERAL and is_known


@dataclass(frozen=True, slots=True)
class Level:
    """The runs with a signature, the most exact first. Those of a ``line`` are moved along it to the job's value.

    ``is_mixed`` says that some of them have a more exact signature.
    """

    signature: Signature
    runs: Sequence[PastRun]
    line: Line | None = None
    is_mixed: bool = False


def lesson_for(wanted: Wanted, runs: Sequence[PastRun], headroom_bytes: int = 0) -> Lesson | None:
    """Return what *runs* of the same program, newest first, teach about the job *wanted*, or None.

    *headroom_bytes* of a device are for no job.
    """
    used = evidence(wanted, runs, lambda run: run.proof in _NEEDS, last_resorts={Signature.LINE, Signature.SCRIPT})
    if used is None:
        return None
    are_alike = not used.is_mixed and used.signature is not Signature.SCRIPT
    result = learned(used.runs, headroom_bytes, is_moved=used.line is not None, are_alike=are_alike)
    return None if result is None else Lesson(signature=used.signature, learned=result, line=used.line)


def evidence(
    wanted: Wanted, runs: Sequence[PastRun], shows: Callable[[PastRun], bool], *, last_resorts: Collection[Signature]
) -> Level | None:
    """Return the coarsest signature that is needed for the job *wanted*, with the runs of all that are needed.

    The *runs* are of the same program, newest first. *shows* returns whether a run shows the figure that is needed.
    *last_resorts* are signatures whose runs count only if no more exact run shows it. None without a run.
    """
    used: list[PastRun] = []
    coarsest: Level | None = None
    for level in levels(wanted, of_one_kind(wanted, runs)):
        shown = sum(map(shows, used))
        if shown >= SEVERAL or (shown and level.signature in last_resorts):
            break
        if level.line is not None:  # its runs contain all that came before, as far as they say more than the line
            return level
        known = {id(run) for run in used}
        more = [run for run in level.runs if id(run) not in known]
        if more:
            coarsest = Level(level.signature, [*used, *more], is_mixed=bool(used))
            used = [*used, *more]
    return coarsest


def of_one_kind(wanted: Wanted, runs: Sequence[PastRun]) -> Sequence[PastRun]:
    """Return the runs on the kind of device that the job will get, judged by the newest run.

    On a CPU and on a simulated device, the resident memory of processes is measured, which says nothing about a GPU.
    """
    kinds = {
        DeviceFilter.CPU: {DeviceKind.CPU},
        DeviceFilter.GPU: {DeviceKind.GPU, DeviceKind.SIMULATED},
    }
    ours = {*DeviceKind} - {DeviceKind.SLURM}  # an engine's figures are of several devices together
    allowed = ours if wanted.device is None else kinds.get(wanted.device, ours)
    kind = next((run.kind for run in runs if run.kind in allowed), None)
    return [run for run in runs if run.kind is kind]


def levels(wanted: Wanted, runs: Sequence[PastRun]) -> Iterator[Level]:
    """Yield each signature with the runs that have it. Those with all arguments may come twice."""
    if not wanted.open:  # the usual case needs no reading of arguments
        same = [run for run in runs if (run.words, run.gpus) == (wanted.words, wanted.gpus)]
        yield from _with_all_arguments(wanted, same)
    asked = _arguments(wanted)
    read = [(run, _arguments(run)) for run in runs]
    anything = frozenset(name for name, value in asked.items() if any(each in value for each in wanted.open))
    yield from _with_all_arguments(wanted, [run for run, args in read if _agree(asked, args, anything)])
    still = still_arguments([(args, run.bytes) for run, args in read if run.proof is Proof.PEAK])
    yield Level(Signature.MOVING, [run for run, args in read if _agree(asked, args, anything | still)])
    yield from _on_a_line(asked, read, anything | still)
    yield Level(Signature.SCRIPT, runs)


def _on_a_line(
    asked: Mapping[str, str], read: Sequence[tuple[PastRun, Mapping[str, str]]], but: frozenset[str]
) -> Iterator[Level]:
    """Yield the runs whose peaks lie on a line of one numeric argument, if there is one. Those of *but* may differ."""
    if len(read) < line.LEAST_VALUES:
        return
    numbers = {name: line.number_of(value) for name, value in asked.items() if name not in but and name != _GPUS}

    def alike(name: str) -> Iterator[tuple[PastRun, float]]:
        for run, args in read:
            number = line.number_of(args.get(name, "")) if _agree(asked, args, but | {name}) else None
            if number is not None:
                yield run, number

    fitted = line.line_of({name: number for name, number in numbers.items() if number is not None}, alike)
    if fitted is not None:
        yield Level(Signature.LINE, fitted[1], fitted[0])


def _arguments(job: Wanted | PastRun) -> Mapping[str, str]:
    """Return the arguments of *job* by name. The number of its devices is one of them.

    A model that is split over its devices needs less on each if there are more, and a copied model the same on each.
    """
    return {**arguments_of(job.words), _GPUS: str(job.gpus)}


def _with_all_arguments(wanted: Wanted, same: Sequence[PastRun]) -> Iterator[Level]:
    """Yield the two signatures with all arguments. The first one exists only if the code is known."""
    if wanted.code is not None:
        yield Level(Signature.EXACT, [run for run in same if _is_exact(wanted, run)])
    yield Level(Signature.ARGUMENTS, same)


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


def program_of(argv: Sequence[str], script: str | None, cwd: str) -> str:
    """Return the program that *argv* runs in *cwd*: the same text for each run of the same file.

    For a Python *script* this is its path. For another command it is the directory, the first word, and the word that
    names what a launcher runs, if there is one. Bytes that are not UTF-8 become question marks, for the databases.
    """
    found = (_path(script, cwd) if script is not None else " ".join([cwd, argv[0], *_launched(argv)]))[-MOST:]
    return found if found.isascii() else found.encode("utf-8", "replace").decode()


def names_a_file(argv: Sequence[str], script: str | None) -> bool:
    """Return whether *argv* runs a file of a user: a script, what a launcher runs, or a program with a directory.

    Programs such as ``true`` and ``nvidia-smi`` are on the path of all users, and nobody needs advice on their memory.
    """
    return script is not None or "/" in argv[0] or bool(_launched(argv))


@lru_cache(maxsize=64)
def _path(script: str, cwd: str) -> str:
    """Return the path of a script. It is cached, because the members of an array have the same one."""
    return os.path.normpath(os.path.join(cwd, script))  # noqa: PTH118 - a submit does not import pathlib


def _launched(argv: Sequence[str]) -> Sequence[str]:
    for before, word in pairwise(argv):
        if before in _NAMING:
            return before, word
        if "." in word and word.lower().endswith(_FILES) and not word.startswith("-"):
            return (word,)
    return ()


def arguments_of(words: Sequence[str]) -> Mapping[str, str]:
    """Return the arguments in *words* by name, as most programs would read them.

    ``--lr 1e-3``, ``--lr=1e-3`` and ``lr=1e-3`` are named arguments; an option before another option is a flag with an
    empty value. Other words are named by their position. An option that occurs twice has both values.
    """
    found: dict[str, str] = {}
    name = None
    position = 0
    for word in words:
        key, equals, value = word.partition("=")
        if _is_option(word) or (equals and key.replace("_", "a").replace(".", "a").isalnum()):
            key = key.lstrip("-") or key
            found[key] = f"{found[key]} {value}".rstrip() if key in found else value
            name = None if equals else key
        elif name is not None:
            found[name] = f"{found[name]} {word}" if found[name] else word
            name = None
        else:
            found[f"#{position}"] = word
            position += 1
    return found


def _is_option(word: str) -> bool:
    return word.startswith("-") and not word[1:2].isdigit() and word not in {"-", "--"}


def expected_utilisation(wanted: Wanted, runs: Sequence[PastRun]) -> float | None:
    """Return the share of time, from 0 to 1, in which the job *wanted* is expected to use each of its devices.

    *runs* are those of the same program, newest first. None if none of them was alone and measured.
    """
    others = {Signature.MOVING, Signature.LINE, Signature.SCRIPT}  # what kept the peak may change it
    used = evidence(wanted, runs, lambda run: run.utilisation is not None, last_resorts=others)
    found = [run.utilisation for run in used.runs if run.utilisation is not None][:LAST] if used is not None else []
    return _rounded(found) if found else None


def expected_duration_s(words: Sequence[str], runs: Sequence[PastRun]) -> float | None:
    """Return in what time nine of ten runs of a program ended well, in seconds; None if none did.

    *runs* are those of the program, newest first. Those with the same arguments *words* count, else all of them.
    """
    well = [run for run in runs if run.lasted_s is not None]
    alike = [run for run in well if run.words == words] or well
    return nine_of_ten([run.lasted_s for run in alike[:LAST] if run.lasted_s is not None])


def nine_of_ten(durations_s: Sequence[float]) -> float | None:
    """Return the duration within which nine of ten of these are, by the nearest rank; None if there are none."""
    found = sorted(durations_s)
    return found[-(-9 * len(found) // 10) - 1] if found else None


def _rounded(found: Sequence[float]) -> float:
    from statistics import median  # noqa: PLC0415 - lazy import for startup time

    return round(min(1.0, median(found)), 2)
