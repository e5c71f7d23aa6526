"""Measures the same trivial job through gpuqueue and each peer that is installed.

python -m benchmarks.peers [--quick] [NAME…]

Each peer has four slots. The job is a shell that writes the time of its start. Celery, RQ and Huey get a store that,
like gpuqueue's, writes to the disk before it replies; task-spooler stores nothing on a disk.
docs/internals/performance.md explains the setup of the other peers. A slow peer gets as many jobs as it does in a
minute. ``start`` is the time from the call of submit (in a process that has imported everything) to the job's first
instruction. ``submits`` is the number of such calls a second while all slots are taken, and ``submit`` the time of one
submit from a shell. Then the main process of the worker is killed with SIGKILL while a job runs, and started again.
``after-kill`` is the number of live copies of the job ten seconds later: one is right, for a job that is neither lost
nor doubled. ``after-cancel`` is that number after the peer was asked to end the job: none is right. A peer that does
not answer within a minute is given up.
"""

from __future__ import annotations

import argparse

from benchmarks.measure.table import report
from benchmarks.peers.compare import figures
from benchmarks.peers.known import PEERS


def main() -> None:
    """Measure all and print a table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PEERS))
    options = parser.parse_args()
    unknown = sorted(set(options.names) - set(PEERS))
    if unknown:
        parser.error(f"no such peer: {', '.join(unknown)}; there are {', '.join(PEERS)}")
    report(figures(quick=options.quick, names=options.names))


if __name__ == "__main__":
    main()
