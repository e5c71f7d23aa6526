"""All benchmarks by name, in the order of a job's steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from benchmarks import (
    bench_array,
    bench_claim,
    bench_commands,
    bench_corridor,
    bench_fetch,
    bench_history,
    bench_kills,
    bench_pack,
    bench_placement,
    bench_recording,
    bench_sampling,
    bench_scale,
    bench_shim,
    bench_snapshot,
    bench_submit,
    bench_warm,
    bench_workers,
)
from benchmarks.measure.figure import Measured
from benchmarks.peers import compare

#: Name -> a function that yields its figures. With ``quick=True`` it takes seconds, and shows that all works.
BENCHMARKS: Mapping[str, Callable[..., Measured]] = {
    "commands": bench_commands.figures,
    "submit": bench_submit.figures,
    "array": bench_array.figures,
    "corridor": bench_corridor.figures,
    "shim": bench_shim.figures,
    "warm": bench_warm.figures,
    "placement": bench_placement.figures,
    "claim": bench_claim.figures,
    "recording": bench_recording.figures,
    "history": bench_history.figures,
    "workers": bench_workers.figures,
    "snapshot": bench_snapshot.figures,
    "pack": bench_pack.figures,
    "fetch": bench_fetch.figures,
    "sampling": bench_sampling.figures,
    "scale": bench_scale.figures,
    "kills": bench_kills.figures,
    "peers": compare.figures,
}
