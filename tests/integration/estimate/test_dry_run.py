"""Dry runs of real scripts with the real torch: what is counted, and that no process or file is left behind."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from torch_scripts import (
    ASKS,
    BACKWARD,
    INFERENCE,
    ITSELF,
    LOADER,
    MOVES,
    NETWORK,
    NETWORK_BUFFER_BYTES,
    NETWORK_PARAMETERS,
    NO_COMPILER,
    TENACIOUS,
    USES_COMPILER,
)

from gpuqueue.errors import DryRunFailed, DryRunTimeout
from gpuqueue.estimate.dry_run import DryRun, Request, dry_run
from gpuqueue.system.process import of_ours_with
from gpuqueue.text.units import GIB, MIB

#: Read at import, because the tests clear the environment.
IN_CI = bool(os.environ.get("CI"))
EXAMPLE = Path(__file__).parents[3] / "examples" / "train.py"


@pytest.fixture(autouse=True)
def _torch() -> None:
    """Skip the tests if torch is not installed, but fail in CI."""
    if importlib.util.find_spec("torch") is not None:
        return
    if IN_CI:
        pytest.fail("CI must make dry runs, and there is no torch")
    pytest.skip("torch is not installed here")


def run(place: Path, code: str, *args: str, script: str = "script.py", **changes: Any) -> DryRun:
    """Write *code* to a script in *place* and make a dry run of it."""
    (place / script).write_text(code)
    request: dict[str, Any] = {
        "interpreter": sys.executable,
        "script": script,
        "args": args,
        "cwd": str(place),
        "env": {**os.environ, "SCRIPT": script},
        "steps": 3,
        "timeout_s": 100,
        "ram_bytes": 64 * GIB,
    }
    return dry_run(Request(**{**request, **changes}))


@pytest.mark.full
@pytest.mark.parametrize(
    ("args", "states"),
    [
        (("--optimizer", "SGD"), 0),
        (("--optimizer", "SGD", "--momentum", "0.9"), 1),
        (("--optimizer", "Adam"), 2),
    ],
)
def test_parameters_gradients_and_states_are_counted_to_the_byte(
    tmp_path: Path, args: tuple[str, ...], states: int
) -> None:
    """A real run gives the textbook multiples of the parameters: 2 for SGD, 3 with momentum, 4 for Adam."""
    counted = run(tmp_path, NETWORK, *args)

    size = 4 * NETWORK_PARAMETERS
    assert (size, size, states * size) == tuple(
        counted.largest(part) for part in ("parameters", "gradients", "optimizer_states")
    )
    assert NETWORK_BUFFER_BYTES == counted.largest("buffers")
    assert (3, "enough", (args[1],), ("float32",)) == (
        counted.steps,
        counted.ended,
        counted.optimizers,
        counted.dtypes,
    )
    assert counted.peak_bytes == sum(part.at_peak_bytes for part in counted.parts)
    assert 0 == counted.peak_bytes % 512


@pytest.mark.full
def test_only_activations_and_data_grow_with_the_batch(tmp_path: Path) -> None:
    """With eight times the batch size, the data is eight times as large and the fixed part is unchanged."""
    small, large = (run(tmp_path, NETWORK, "--batch-size", size) for size in ("64", "512"))

    for part in ("parameters", "gradients", "optimizer_states"):
        assert small.largest(part) == large.largest(part)
    assert 8 * small.largest("sent") == large.largest("sent")
    assert 7 < large.largest("activations") / small.largest("activations") <= 8


@pytest.mark.full
def test_moves_between_host_and_gpu_are_counted_as_such(tmp_path: Path) -> None:
    """A slice sent to the GPU counts as the size of the slice.

    Tensors copied back or written on the host do not count.
    """
    counted = run(tmp_path, MOVES)

    assert (4000, 4000) == (counted.largest("sent"), counted.largest("activations"))
    assert (2 * 4096, 2 * 96, "finished") == (
        counted.peak_bytes,
        next(part.at_peak_bytes for part in counted.parts if part.name == "rounding"),
        counted.ended,
    )


@pytest.mark.full
def test_the_example_is_counted_as_it_is(tmp_path: Path) -> None:
    """examples/train.py is counted unchanged: 29 066 parameters, SGD with momentum."""
    pytest.importorskip("sklearn")

    counted = run(tmp_path, EXAMPLE.read_text())

    parts = ("parameters", "gradients", "optimizer_states")
    assert ([4 * 29066] * 3, ("SGD",)) == ([counted.largest(part) for part in parts], counted.optimizers)


@pytest.mark.full
def test_a_script_finds_all_that_a_gpu_has(tmp_path: Path) -> None:
    """A script can query, move, cast, scale, compile and synchronize as with a real GPU.

    The script has the assertions.
    """
    counted = run(tmp_path, ASKS)

    assert (3, ("AdamW",), "enough") == (counted.steps, counted.optimizers, counted.ended)


@pytest.mark.full
def test_the_compiler_is_not_imported(tmp_path: Path) -> None:
    """A dry run compiles nothing, so torch does not import its compiler: that took half of the time.

    A script that uses the compiler's own functions still finds them.
    """
    assert 3 == run(tmp_path, NETWORK.replace("    optimizer.step()\n", f"    optimizer.step()\n{NO_COMPILER}")).steps
    assert "finished" == run(tmp_path, USES_COMPILER).ended


@pytest.mark.full
def test_a_backward_pass_of_the_scripts_own_sees_the_gpu_too(tmp_path: Path) -> None:
    """Checkpoints and custom autograd functions, which torch calls, see the simulated GPU too."""
    assert 3 == run(tmp_path, BACKWARD).steps


@pytest.mark.full
def test_a_script_without_an_optimizer_is_counted_by_its_passes(tmp_path: Path) -> None:
    """A script without an optimizer is counted by forward passes, and holds its parameters once."""
    counted = run(tmp_path, INFERENCE)

    assert (0, 3, (), 2 * 4 * 10100) == (
        counted.steps,
        counted.forwards,
        counted.optimizers,
        counted.largest("parameters"),
    )
    assert (0, 0) == (counted.largest("gradients"), counted.largest("optimizer_states"))


@pytest.mark.full
def test_a_script_is_itself(tmp_path: Path) -> None:
    """The script sees the name, arguments, path and functions of ``python itself.py``, also in spawned processes."""
    (tmp_path / "beside.py").write_text("")

    assert "finished" == run(tmp_path, ITSELF, "--lr", "1e-3", script="itself.py").ended


@pytest.mark.full
def test_the_end_is_the_end(tmp_path: Path) -> None:
    """When enough steps are counted, the script stops without except, finally or atexit code.

    It cannot overwrite a good checkpoint.
    """
    (tmp_path / "checkpoint.pt").write_text("good")

    counted = run(tmp_path, TENACIOUS)

    assert (3, "enough") == (counted.steps, counted.ended)
    assert {"script.py", "checkpoint.pt"} == {entry.name for entry in tmp_path.iterdir()}
    assert "good" == (tmp_path / "checkpoint.pt").read_text()


@pytest.mark.full
def test_the_processes_of_a_loader_end_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A data loader's worker processes, pinning thread and temporary files work in a dry run, and are gone after it."""
    with tempfile.TemporaryDirectory(dir="/tmp") as short:  # a short path, as a socket's path must fit below it
        monkeypatch.setattr("tempfile.tempdir", short)

        counted = run(tmp_path, LOADER, script=f"loader-{os.getpid()}.py")

        assert [] == list(Path(short).iterdir())
    assert 3 == counted.steps
    assert 2 * 4 * 4 * 8 <= counted.largest("sent")
    assert [] == of_ours_with(f"loader-{os.getpid()}.py")


@pytest.mark.full
def test_a_failing_script_is_reported_with_its_traceback(tmp_path: Path) -> None:
    """The error has the script's traceback, without frames of gpuqueue."""
    code = "import torch\ndef inner():\n    raise ValueError('no such data')\ntorch.zeros(1).cuda()\ninner()\n"

    with pytest.raises(DryRunFailed, match=r"script\.py failed in the dry run") as failed:
        run(tmp_path, code)

    assert "ValueError: no such data" == failed.value.trace.splitlines()[-1]
    assert "line 3, in inner" in failed.value.trace
    assert "_gpuqueue" not in failed.value.trace
    assert "begin.py" not in failed.value.trace


@pytest.mark.full
@pytest.mark.parametrize(
    ("code", "output"),
    [
        ("raise SystemExit('no data here')", "no data here"),
        ("import argparse; argparse.ArgumentParser().parse_args(['--lr'])", "unrecognized arguments: --lr"),
        ("import os; print('last words', flush=True); os.kill(os.getpid(), 9)", "last words"),
        ("def broken(:", "SyntaxError"),
    ],
)
def test_whatever_way_it_fails_there_is_a_word_of_it(tmp_path: Path, code: str, output: str) -> None:
    """The error has a text for an exit with a message, for a signal and for a syntax error."""
    with pytest.raises(DryRunFailed) as failed:
        run(tmp_path, code)

    assert output in failed.value.trace


@pytest.mark.full
def test_a_script_that_uses_no_gpu_is_reported(tmp_path: Path) -> None:
    """A script that uses no GPU memory is an error. A result of 0 bytes would be wrong."""
    with pytest.raises(DryRunFailed, match="without using a GPU"):
        run(tmp_path, "import torch; torch.zeros(10)")


def test_a_python_without_torch_is_reported(tmp_path: Path) -> None:
    """A Python without torch is an error that says what to do."""
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('absent', name='torch')")

    with pytest.raises(DryRunFailed, match=r"needs torch 2\.1 or newer in .*--python"):
        run(tmp_path, "", env={**os.environ, "PYTHONPATH": str(tmp_path)})


def test_a_script_that_never_steps_is_ended(tmp_path: Path) -> None:
    """A script that makes no step in time is ended, with all processes that it started."""
    script = f"never-{os.getpid()}.py"
    code = f"import subprocess; subprocess.run(['sleep', '600'], env={{'X': '{script}'}})"

    with pytest.raises(DryRunTimeout, match="made no step"):
        run(tmp_path, code, script=script, timeout_s=0.5)

    assert [] == of_ours_with(script)


@pytest.mark.full
def test_steps_that_were_made_in_time_count(tmp_path: Path) -> None:
    """The steps made before the timeout count, because a large model is slow on the CPU."""
    code = NETWORK.replace("    optimizer.step()\n", "    optimizer.step()\n    import signal; signal.pause()\n")

    try:
        counted = run(tmp_path, code, timeout_s=10)
    except DryRunTimeout:  # on a busy machine the import of torch alone takes longer
        counted = run(tmp_path, code, timeout_s=60)

    assert ("timed_out", 1) == (counted.ended, counted.steps)
    assert counted.largest("gradients") == counted.largest("parameters")


@pytest.mark.full
def test_a_script_that_eats_this_machines_memory_is_ended(tmp_path: Path) -> None:
    """A script that exceeds the limit on host memory is ended before the machine runs out of memory."""
    code = "import signal\nheld = bytearray(b'x') * (600 * 2**20)\nsignal.pause()"

    with pytest.raises(DryRunFailed, match=r"took more than 512M of this machine's memory.*--ram"):
        run(tmp_path, code, ram_bytes=512 * MIB)
