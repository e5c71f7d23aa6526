"""How much runs slow each other on a shared device, as a model. Pure.

The speed of a run depends on the sum of the utilisations that the runs on its device have when each is alone. Measured
were 1388 pairs of training jobs (Hu et al., "Lucid: A Non-intrusive, Scalable and Interpretable Scheduler for Deep
Learning Training Jobs", ASPLOS 2023): the mean speed was 0.99 where the sum was 60 to 80 %, 0.93 where it was 100 to
120 %, and 0.74 where it was 150 to 200 %. What the model adds:

- **Between** the middles of these ranges the speed is interpolated, and it is 1 at a sum of 0.
- **Beyond** the last one a device does no more work in total than there: the speed is inverse to the sum.
- **More than two** runs are as two with the same sum.
- A run on several devices is as slow as on the slowest of them, because its processes wait for each other.

Memory bandwidth, caches and the host are not modelled.
"""

from __future__ import annotations

from itertools import pairwise

#: The sum of the utilisations on a device, and the speed of each run there, as a share of its speed alone.
CURVE = ((0.0, 1.0), (0.7, 0.99), (1.1, 0.93), (1.75, 0.74))


def speed(total: float) -> float:
    """Return the speed of runs that share a device, as a share of their speed alone.

    *total* is the sum of their utilisations alone: 1.2 for two runs with 60 % each.
    """
    for (low, before), (high, after) in pairwise(CURVE):
        if total <= high:
            return before + (after - before) * (total - low) / (high - low)
    last, at_last = CURVE[-1]
    return last * at_last / total
