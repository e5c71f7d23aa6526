from __future__ import annotations

from factories import make_device, make_offer, make_spec, serve
from site_of_one import Site

from gpuqueue.queue.lease import ExternalProcess
from gpuqueue.text.units import GIB


def test_a_notebook_on_one_of_two_devices_is_named(site: Site) -> None:
    """A job on two devices waits for a notebook on one of them.

    Regression: ``why`` said that no device would ever have enough room.
    """
    site.make_tables()
    notebook = ExternalProcess(pid=7, held_bytes=17 * GIB, counted_bytes=17 * GIB, user="eve", command="notebook")
    in_use = make_offer(
        "GPU-1", device=make_device("GPU-1", index=1), external_bytes=17 * GIB, external_processes=(notebook,)
    )
    serve(site.queue, make_offer("GPU-0"), in_use)
    job_id = site.queue.requests.submit(make_spec(mem_bytes=20 * GIB, gpus=2)).id

    output = site.cli("why", str(job_id))

    assert "start  not before the external processes on nodeA:1 have ended\n" in output.stdout
    assert "external 17G (eve notebook)" in output.stdout
