from __future__ import annotations

import pytest
from factories import make_device, make_offer, serve
from site_of_one import Site

from gpuqueue.model.device import DeviceKind
from gpuqueue.queue import keys
from gpuqueue.queue.connect import connect
from gpuqueue.text.units import GIB
from workers.devices.cpu import CpuBackend
from workers.services.host import Host


@pytest.mark.parametrize(("spec", "known"), [("auto", True), ("auto,cpu", True), ("cpu", False)])
def test_a_host_that_comes_back_without_its_gpus_does_not_forget_them(
    site: Site, store_url: str, spec: str, *, known: bool
) -> None:
    """A host that restarts without its GPUs does not forget them.

    Otherwise a driver that is not loaded after an upgrade would move every waiting job to the CPU without a question.
    """
    name = site.settings.host
    serve(
        site.queue,
        make_offer("GPU-0", host=name),
        make_offer("sim-0", host=name, device=make_device("sim-0", kind=DeviceKind.SIMULATED)),
    )
    client = connect(store_url)
    for uuid, kind in (("GPU-0", "gpu"), ("sim-0", "simulated")):  # known from before the reboot
        client.hset(keys.host_devices(name), uuid, f"{24 * GIB}:0:0:1:8::{kind}")
    client.close()

    Host(site.settings, CpuBackend(name).devices(), spec, record=False)._take_over()

    assert (["GPU-0"] if known else []) == [each.device.uuid for each in site.queue.devices.all()]
