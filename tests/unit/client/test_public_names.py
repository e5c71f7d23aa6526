from __future__ import annotations

import subprocess
import sys

import gpuqueue
from gpuqueue import _HOMES


def test_the_public_names_are_there() -> None:
    """`__all__` lists exactly the public names of the package."""
    assert sorted({*_HOMES, "__version__"}) == sorted(gpuqueue.__all__)
    for name in gpuqueue.__all__:
        assert getattr(gpuqueue, name) is not None


def test_a_client_imports_nothing_heavy_before_it_is_needed() -> None:
    """A client and the command line load no heavy module, because users notice import time.

    Heavy modules are redis, SQL, Celery, torch and the GPU driver.
    """
    heavy = {"redis", "sqlalchemy", "alembic", "celery", "kombu", "torch", "pynvml", "psutil", "rich", "workers"}
    code = "import sys; from gpuqueue import Client; Client(); import gpuqueue.cli.main; print(*sys.modules)"

    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()

    assert set() == heavy & set(loaded)
