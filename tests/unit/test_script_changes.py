from __future__ import annotations

from pathlib import Path

import pytest

from workers.inside.script import MOST_BYTES, changes
from workers.latched import is_latched


def change_of(tmp_path: Path, text: str | bytes) -> str | None:
    """Return what a script with this text changes."""
    path = tmp_path / "train.py"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return changes(str(path), is_latched)


@pytest.mark.parametrize(
    "text",
    [
        'import os\nos.environ["OMP_NUM_THREADS"] = "1"',
        'import os as o\no.environ["OMP_NUM_THREADS"] += "1"',
        'from os import environ\nenviron["OMP_NUM_THREADS"]: str = "1"',
        'from os import environ as e\ne["OMP_NUM_THREADS"] = "1"',
        'import os\nenv = os.environ\nenv["OMP_NUM_THREADS"] = "1"',
        'import os\ndel os.environ["OMP_NUM_THREADS"]',
        'import os\nos.environ.pop("OMP_NUM_THREADS", None)',
        'import os\nos.environ.setdefault("OMP_NUM_THREADS", "1")',
        'import os\nos.environ.update({"A": "HOME", "OMP_NUM_THREADS": "1"})',
        'import os\nos.environ.update({"A": "B", **{"OMP_NUM_THREADS": "1"}})',
        'import os\nos.environ.update(OMP_NUM_THREADS="1")',
        'import os\nos.environ.update(dict(OMP_NUM_THREADS="1"))',
        'import os\nos.environ |= {"OMP_NUM_THREADS": "1"}',
        'import os\nos.putenv("OMP_NUM_THREADS", "1")',
        'from os import unsetenv, environ\nunsetenv("OMP_NUM_THREADS")',
        'import os\nfor name in ("A", "OMP_NUM_THREADS"):\n    os.environ[name] = "1"',
        'import os\ndef main():\n    if 1:\n        os.environ["OMP_NUM_THREADS"] = "1"',
        '# coding: latin-1\n"\xe9"\nimport os\nos.environ["OMP_NUM_THREADS"] = "1"'.encode("latin-1"),
    ],
)
def test_a_variable_that_is_read_once(tmp_path: Path, text: str | bytes) -> None:
    """However it is set, changed or taken away; its name stands there."""
    assert "OMP_NUM_THREADS" == change_of(tmp_path, text)


@pytest.mark.parametrize(
    "text",
    [
        *(f"import sys\nsys.path.{call}" for call in ("insert(0, 'x')", "append('x')", "extend(['x'])", "remove('x')")),
        *(
            f"import sys\n{what}"
            for what in ("sys.path[0:0] = ['x']", "sys.path = []", "sys.path += ['x']", "del sys.path[0]")
        ),
        "import os, sys as s\nif 1:\n    s.path.append('x')",
        "from sys import path\npath.append('x')",
        "import site\nsite.addsitedir('x')",
        "from site import addsitedir\naddsitedir('x')",
    ],
)
def test_the_path_that_modules_come_from(tmp_path: Path, text: str) -> None:
    """Another torch may lie there, or what torch looks for."""
    assert "sys.path" == change_of(tmp_path, text)


@pytest.mark.parametrize(
    "text",
    [
        "import os\nprint(os.environ['OMP_NUM_THREADS'], os.environ.get('HOME'))",
        "import sys\nprint(sys.path, sys.path[0], sys.path.index('x'))",
        "import os\nos.environ['WANDB_MODE'] = os.environ['HOME']",
        "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '0'",
        "import os\nfor name in ('A', 'B'):\n    os.environ[name] = '1'",
        "import os\nenv = os.environ.copy()\nenv['OMP_NUM_THREADS'] = '1'\nenv = {**os.environ, 'HOME': ''}",
        "# os.environ['OMP_NUM_THREADS'] = '1'; sys.path.append('x')",
        "import os\nos.path.join('a').append('x')\npath = []\npath.append('sys.path')",
        "import os\nos.environ['OMP_NUM_THREADS'] = = '1'",
        b"import os\n'\xff'\nos.environ['OMP_NUM_THREADS'] = '1'",
        b"import os\nos.environ['OMP_NUM_THREADS'] = '1'\0",
        "import os\nos.environ['OMP_NUM_THREADS'] = '1'\n" + "x = 1\n" * MOST_BYTES,
        "import os\nos.environ['A'] = " + "(" * 5000 + ")" * 5000,
        "",
    ],
)
def test_what_changes_nothing_or_cannot_be_told(tmp_path: Path, text: str | bytes) -> None:
    """What is only read, what may be set at any time, what Python itself refuses, and what is too long to look at."""
    assert change_of(tmp_path, text) is None


@pytest.mark.filterwarnings("error")
def test_python_alone_warns_of_a_script(tmp_path: Path) -> None:
    """Twice the same warning would stand in the log."""
    assert change_of(tmp_path, "import os\nprint('\\d', os.environ, 1 is 1)") is None
