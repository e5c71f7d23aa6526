"""Checks that no card is over-allocated: a real site on four fake cards, with two workers racing on each.

Random jobs, external processes that start and end, and jobs that exceed their request. At the end every claim, every
ending and every recorded peak is compared with what the fake driver recorded. Exits with 1 at any violation.

    PYTHONPATH=.:tests/support python benchmarks/soak_memory.py [--claims 10000] [--seed 7] [--keep DIRECTORY]
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from soak.soak import Soak

from gpuqueue.embedded.store import EmbeddedStore
from gpuqueue.settings.settings import Settings

#: The most violations that are printed; the rest is only counted.
MOST_SHOWN = 40


def main() -> int:
    """Run the soak, and print the result."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--claims", type=int, default=10_000)
    arguments.add_argument("--seed", type=int, default=7)
    arguments.add_argument("--keep", type=Path, help="leave everything in this directory, to look into it")
    chosen = arguments.parse_args()
    directory = chosen.keep or Path(tempfile.mkdtemp(prefix="gpuqueue-soak-"))
    directory.mkdir(parents=True, exist_ok=True)
    for name in [each for each in os.environ if each.startswith("GPUQUEUE_")]:
        del os.environ[name]  # the user's own settings
    os.environ["GPUQUEUE_CONFIG"] = os.devnull
    home = Settings.load({"GPUQUEUE_STATE_DIR": str(directory / "home"), "GPUQUEUE_CONFIG": os.devnull})
    store = EmbeddedStore(home)
    store.start()
    try:
        soak = Soak(directory, home.redis_url, claims=chosen.claims, seed=chosen.seed)
        try:
            outcome = soak.run()
        finally:
            soak.close()
    finally:
        store.stop()
        if chosen.keep is None:
            shutil.rmtree(directory, ignore_errors=True)
    violations = outcome.violations()
    print(outcome.table())
    loads = ", ".join(f"{each:.0f}" for each in os.getloadavg())
    print(f"load over the last 1, 5 and 15 minutes: {loads} on {os.cpu_count()} cores")
    for line in [*violations[:MOST_SHOWN], *outcome.peaks.mismatches[:MOST_SHOWN]]:
        print(f"  {line}")
    print(f"{len(violations)} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
