"""``gpuqueue-kernel``: adds a kernel to Jupyter that starts as a job, made from one that is there."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

from gpuqueue.errors import BadRequest
from gpuqueue.text.units import parse_bytes, parse_duration

PROVISIONER = "gpuqueue-provisioner"


def main() -> None:
    """Read the command line, and add the kernel."""
    parser = argparse.ArgumentParser(prog="gpuqueue-kernel", description=__doc__)
    parser.add_argument("--mem", required=True, help="device memory of each kernel, such as 8G")
    parser.add_argument("--time", default="8h", help="time limit of each kernel (default: 8h)")
    parser.add_argument("--of", default="python3", metavar="KERNEL", help="the kernel to start (default: python3)")
    parser.add_argument("--name", help="name of the new kernel (default: KERNEL-MEM)")
    parser.add_argument("--user", action="store_true", help="for all of your environments, not for this one only")
    given = parser.parse_args()
    try:
        parse_bytes(given.mem)
        parse_duration(given.time)
    except BadRequest as error:
        parser.error(str(error))
    name = (given.name or f"{given.of}-{given.mem}").lower()
    specs = KernelSpecManager()
    try:
        spec = specs.get_kernel_spec(given.of)
    except NoSuchKernel:
        parser.error(f"there is no kernel {given.of}: see jupyter kernelspec list")
    with TemporaryDirectory() as place:
        directory = Path(place, name)
        shutil.copytree(spec.resource_dir, directory)
        stanza = {"provisioner_name": PROVISIONER, "config": {"mem": given.mem, "time_limit": given.time}}
        plain = {
            **spec.to_dict(),
            "display_name": f"{spec.display_name} ({given.mem})",
            "metadata": {**spec.metadata, "kernel_provisioner": stanza},
        }
        (directory / "kernel.json").write_text(json.dumps(plain, indent=1), encoding="utf-8")
        where = {"user": True} if given.user else {"prefix": sys.prefix}
        try:
            made = specs.install_kernel_spec(str(directory), name, **where)
        except (OSError, ValueError) as error:
            parser.error(f"the kernel {name} cannot be added: {error}")
    print(f"{plain['display_name']}: {made}/kernel.json")  # noqa: T201 - what the command is for
