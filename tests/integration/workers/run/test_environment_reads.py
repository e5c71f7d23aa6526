from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from workers.warm_pool import is_latched

SPY = Path(__file__).parents[3] / "support" / "environment_spy"
COMPILER = shutil.which("gcc") or shutil.which("cc")
#: Variables that are read while a warm interpreter starts, and that may still differ for the job, with the reason.
HARMLESS = {
    "PATH": "to find the interpreter itself, which must be the same file",
    "__PYVENV_LAUNCHER__": "means something on macOS alone",
    "PYTORCH_ALLOC_CONF": "of which only the allocator is taken; a job that names one starts cold",
    "PYTORCH_CUDA_ALLOC_CONF": "as above",
    "ENVIRONMENT_SPY": "ours",
    "* of tqdm.utils": "looks for those that begin with TQDM_, which must be the same",
}

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no torch here to import")


def reads(code: Path, **more: str) -> set[str]:
    """Import torch with a spy, in a nearly empty environment; return the variables that Python code asked for."""
    env = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "LANG": "C.UTF-8", **more}
    done = subprocess.run([sys.executable, "-S", str(code)], env=env, check=True, stdout=subprocess.PIPE, text=True)
    return set(done.stdout.splitlines())


@pytest.mark.full
def test_what_python_code_reads_while_torch_is_imported_must_agree() -> None:
    """Variables that Python code reads while torch is imported are checked before a warm start.

    This holds from the first line of a .pth file on: a warm interpreter has read the values of an earlier job.
    """
    found = reads(SPY / "spy.py")

    assert {"PYTORCH_JIT", "TORCH_LOGS"} <= found
    assert set() == {name for name in found if not is_latched(name)} - HARMLESS.keys()


@pytest.mark.full
@pytest.mark.skipif(COMPILER is None, reason="no C compiler here to build what listens: apt install gcc")
def test_what_libraries_read_while_torch_is_imported_must_agree(tmp_path: Path) -> None:
    """Variables that libraries read while torch is imported are checked before a warm start.

    MKLDNN_MAX_CPU_ISA was once missing: it took effect in the next job, and not in the job that set it.
    """
    library, notes = tmp_path / "spy.so", tmp_path / "notes"
    flags = ["-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", str(library), str(SPY / "spy.c")]
    subprocess.run([str(COMPILER), *flags], check=True)

    reads(SPY / "spy.py", LD_PRELOAD=str(library), ENVIRONMENT_SPY=str(notes))

    found = set(notes.read_text().splitlines())
    assert {"OMP_NUM_THREADS", "PYTHONPATH"} <= found
    assert set() == {name for name in found if not is_latched(name)} - HARMLESS.keys()
