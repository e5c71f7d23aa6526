"""The options of ``submit`` and ``run`` that say on which device a job is put, and how."""

from __future__ import annotations

import click

from gpuqueue.placement import Preference

OPTIONS = (
    click.option(
        "--device",
        multiple=True,
        metavar="WHICH",
        help="gpu, cpu or any; or a device by UUID, its start, INDEX or HOST:INDEX, several by commas. "
        "Nothing said: a GPU, unless the queue knows of none.",
    ),
    click.option(
        "--device-type",
        multiple=True,
        metavar="MODEL",
        help="Only devices of this model, by words of its name: A100. May be repeated: any of these.",
    ),
    click.option("--exclusive", is_flag=True, help="Alone on each device. Without --mem: all of its memory."),
    click.option(
        "--spread", "preference", flag_value=str(Preference.SPREAD), help="On the device with the most free memory."
    ),
    click.option(
        "--pack", "preference", flag_value=str(Preference.PACK), help="On the device with the least that is enough."
    ),
)
