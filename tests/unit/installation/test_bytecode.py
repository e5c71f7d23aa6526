"""The bytecode of an installation, in a directory of its own."""

from __future__ import annotations

import os
from importlib.util import cache_from_source
from pathlib import Path

import pytest

from gpuqueue.installation.files import State
from gpuqueue.installation.steps import Bytecode


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory with gpuqueue, two libraries that it needs, and one for its contributors."""
    needs = {
        "gpuqueue-server": ("Direct_Library>=1; python_version > '3'", "a-checker>=2; extra == 'test'"),
        "direct-library": ("far.library[more]<3", "of-an-extra; extra == 'more'"),
        "far.library": (),
        "a-checker": (),
        "of-an-extra": (),
    }
    for name, requirements in needs.items():
        file = "gpuqueue/module.py" if name == "gpuqueue-server" else f"{name.replace('-', '_')}/module.py"
        (tmp_path / file).parent.mkdir()
        (tmp_path / file).write_text("pattern = '\\d'\n")  # Python warns of it
        found = tmp_path / f"{name.replace('-', '_')}-1.dist-info"
        found.mkdir()
        lines = [f"Name: {name}", "Version: 1", *(f"Requires-Dist: {each}" for each in requirements)]
        (found / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", *lines, ""]))
        (found / "RECORD").write_text(f"{file},,\n/etc/hosts.py,,\nremoved.py,,\n")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def compiled(site: Path) -> set[str]:
    """Return the directories whose modules have bytecode."""
    return {path.parent.name for path in site.glob("*/*.py") if Path(cache_from_source(path)).exists()}


@pytest.mark.filterwarnings("error")
def test_gpuqueue_and_what_it_needs_are_compiled(site: Path) -> None:
    """The libraries of other extras are left alone. A second install has nothing to do."""
    step = Bytecode(site)
    assert State.DIFFERS is step.state()
    step.make()

    assert {"gpuqueue", "direct_library", "far.library"} == compiled(site)
    assert State.THERE is step.state()


def test_a_module_without_valid_code_is_no_reason_to_compile(site: Path) -> None:
    """Some libraries have templates that end in .py."""
    step = Bytecode(site)
    step.make()
    (site / "gpuqueue" / "template.py").write_text("class {{ name }}:\n")

    assert State.THERE is step.state()
    step.make()
    (site / "gpuqueue" / "new.py").write_text("")
    assert State.DIFFERS is step.state()


def test_every_account_can_read_the_bytecode(site: Path) -> None:
    """It does not depend on the umask of root."""
    before = os.umask(0o077)
    try:
        Bytecode(site).make()
        inside = os.umask(0o077)
    finally:
        os.umask(before)

    file = Path(cache_from_source(site / "gpuqueue" / "module.py"))
    assert (0o077, 0o755) == (inside, file.parent.stat().st_mode & 0o777)
    assert 0o044 == file.stat().st_mode & 0o044
