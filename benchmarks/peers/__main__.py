"""Measures the same trivial job through gpuqueue and each peer that is installed.

python -m benchmarks.peers [--quick] [NAME…]

Four slots each. The job is a shell that writes down when it started. Celery, RQ and Huey get a store that has each
write on the disk before it replies, as ours has; task-spooler keeps nothing on a disk; docs/internals/performance.md
explains how the others were set up. One that is slow gets as many jobs as it does in a minute. ``start`` is from the
call of submit (in a process that has imported all) to the job's first instruction, ``submits`` how many such calls
there are a second while all slots are taken, ``submit`` one submit from a shell. Then the main process of the worker
is killed with SIGKILL while a job runs, and started again; ``after-kill`` is how many copies of the job live ten
seconds later (one is right: it was neither lost nor doubled), ``after-cancel`` how many still do when the peer was
asked to end it (none is right). A peer that does not answer within a minute is given up.
"""

from __future__ import annotations

import argparse

from benchmarks.measure.table import tell
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
    tell(figures(quick=options.quick, names=options.names))


if __name__ == "__main__":
    main()
