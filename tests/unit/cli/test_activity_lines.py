from __future__ import annotations

from gpuqueue.model.device import Activity
from gpuqueue.words.values import activity_lines


def test_the_device_and_the_run_have_a_line_each() -> None:
    """The line of the run has what the driver reports of it alone. Without figures there is no line."""
    device = Activity(first_memory_s=2.5, utilisation_mean=0.6, utilisation_max=1.0, temperature_max_c=71.0)
    run = Activity(own_utilisation_mean=0.456, own_utilisation_p95=0.8)
    bandwidth = Activity(
        own_utilisation_mean=0.5, own_utilisation_p95=0.8, own_bandwidth_mean=0.25, own_bandwidth_p95=1.0
    )

    assert [] == list(activity_lines(Activity()))
    assert ["first memory after 2.5s, busy 60 % (at most 100 %), at most 71 °C"] == list(activity_lines(device))
    assert ["by this run: utilisation 46 % (95th percentile 80 %)"] == list(activity_lines(run))
    assert [
        "by this run: utilisation 50 % (95th percentile 80 %), memory bandwidth 25 % (95th percentile 100 %)"
    ] == list(activity_lines(bandwidth))
