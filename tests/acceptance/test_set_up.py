"""`dev.py` makes the environment of the checkout, and makes it again if it is not whole."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def dev(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return `dev.py` with an environment elsewhere. What it would install is in ``installs``."""
    monkeypatch.syspath_prepend(str(ROOT))
    spec = importlib.util.spec_from_file_location("dev_of_test", ROOT / "dev.py")
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.VENV, module.BIN, module.INSTALLED = tmp_path, tmp_path / "bin", tmp_path / "installed.txt"
    module.PLUGINS, module.installs, module.plugins = (), [], []
    module.install = lambda python, *words: (
        module.installs.append((Path(python), words[2])) or module.plugins.append(words[3:]) or 0
    )
    return module


def test_an_environment_whose_making_was_stopped_is_made_again(dev: Any, tmp_path: Path) -> None:
    """It has a Python before it has pip. After a Ctrl-C there, every later command failed for want of pip."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / "pyvenv.cfg").write_text("include-system-site-packages = false\n")

    dev.set_up("test")

    assert 0 == subprocess.run([tmp_path / "bin" / "python", "-m", "pip", "--version"], check=False).returncode
    assert [(tmp_path / "bin" / "python", f"{ROOT}[test]")] == dev.installs


def test_what_is_installed_is_not_installed_again(dev: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second command needs no network, unless the project needs something else than before."""
    monkeypatch.setattr(dev, "IS_WHOLE", "")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)

    for extras in (("test",), ("test",), ("examples",), ("test",)):
        dev.set_up(*extras)

    assert [f"{ROOT}[test]", f"{ROOT}[examples]"] == [wanted for _, wanted in dev.installs]


def test_plug_ins_are_installed_with_what_the_tests_need(
    dev: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new need of one of them is installed too. The demo needs none of them."""
    monkeypatch.setattr(dev, "IS_WHOLE", "")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    needs = tmp_path / "one" / "pyproject.toml"
    needs.parent.mkdir()
    needs.write_text("[project]\n")
    dev.PLUGINS = (needs.parent,)

    dev.set_up("examples")
    dev.set_up("docs", "test")
    needs.write_text("[project]\ndependencies = ['numpy']\n")
    dev.set_up("docs", "test")

    with_one = ("-e", f"{needs.parent}[test]")
    assert [(), with_one, with_one] == dev.plugins


def test_an_old_python_is_named(dev: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It used to download packages and to end with a list of versions that pip had ignored."""
    monkeypatch.setattr(dev, "MIN_PYTHON", (99, 0))

    assert 1 == dev.main(["demo"])
    assert "gpuqueue needs Python 3.10 or newer, and this is 3." in capsys.readouterr().out
    assert [] == dev.installs


@pytest.mark.parametrize("name", ["dev.py", "page_parts.py"])
def test_an_old_python_can_read_the_file_that_refuses_it(name: str) -> None:
    """Python 3.7, which some servers still have, ended with a SyntaxError in place of the sentence above."""
    ast.parse((ROOT / name).read_text(encoding="utf-8"), feature_version=(3, 7))
