"""gpuqu: one server with a web page, which gives each card one job and starts one job every two seconds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.peers.crew import running
from benchmarks.peers.install import HOME, PYTHON
from benchmarks.peers.peer import SLOTS, NotInstalled, Peer, private_place
from benchmarks.peers.reach import answer, free_port

#: gpuqu starts no job without a card, and one on each. Its own stand-in (GPUQ_FAKE_GPU) has one card, this one has
#: four.
NVIDIA_SMI = """\
#!/bin/sh
asked=${1#--query-gpu=}
IFS=,
card=0
while [ $card -lt SLOTS ]; do
    line=
    for field in $asked; do
        case $field in
            index) value=$card ;;
            name) value=Stand-in ;;
            uuid) value=GPU-$card ;;
            memory.total) value=24576 ;;
            *) value=0 ;;
        esac
        line="$line${line:+, }$value"
    done
    echo "$line"
    card=$((card + 1))
done
"""


@contextmanager
def gpuqu() -> Iterator[Peer]:
    """Run one server with four cards of a stand-in for ``nvidia-smi``."""
    program = HOME / "bin" / "gpuq"
    if not program.exists():
        raise NotInstalled("gpuqu")
    port = free_port()
    with private_place(GPUQ_PORT=str(port)) as (place, environ):
        cards = Path(place) / "nvidia-smi"
        cards.write_text(NVIDIA_SMI.replace("SLOTS", str(SLOTS)), encoding="utf-8")
        cards.chmod(0o755)
        environ |= {"GPUQ_GPU_BIN": str(cards), "GPUQ_DATA": f"{place}/data"}
        with running([[str(program), "serve"]], environ) as crew:
            crew.await_up(partial(answer, f"http://127.0.0.1:{port}/api/system"), "the server of gpuqu")
            yield Peer(
                name="gpuqu",
                environ=environ,
                python=str(PYTHON),
                command=[str(program), "submit", "--", "/bin/true"],
                mains=crew.mains,
                restart=crew.start,
            )
