"""Tests of the files that guide contributors: workflows, templates, citation, hooks."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from importlib.metadata import metadata, version
from pathlib import Path

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
SCHEMAS = {
    ".github/workflows/ci.yml": "vendor.github-workflows",
    ".github/workflows/release.yml": "vendor.github-workflows",
    ".github/ISSUE_TEMPLATE/bug.yml": "vendor.github-issue-forms",
    ".github/ISSUE_TEMPLATE/feature.yml": "vendor.github-issue-forms",
    ".github/ISSUE_TEMPLATE/config.yml": "vendor.github-issue-config",
    "CITATION.cff": "vendor.citation-file-format",
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_each_file_follows_its_schema(name: str) -> None:
    """Each file follows its schema, which check-jsonschema provides."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", SCHEMAS[name], str(ROOT / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_workflow_runs_the_commands_of_the_readme() -> None:
    """A contributor can run what CI runs: the quick tests for a push, all tests each night."""
    jobs = YAML(typ="safe").load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    commands = {name: [step["run"] for step in job["steps"] if "run" in step] for name, job in jobs.items()}

    assert ["python3 dev.py test"] == commands["quick"]
    assert "python3 dev.py test --full" == commands["full"][-1]


def test_a_release_is_built_and_tested_by_commands_of_dev_py() -> None:
    """Only a tag publishes, only after the tests, and only the publishing job can prove who it is."""
    workflow = YAML(typ="safe").load((ROOT / ".github/workflows/release.yml").read_text())
    build, publish = workflow["jobs"]["build"], workflow["jobs"]["publish"]

    assert {"push": {"tags": ["v*"]}} == workflow["on"]
    assert ["python3 dev.py test", "python3 dev.py dist"] == [step["run"] for step in build["steps"] if "run" in step][
        1:
    ]
    assert ("build", {"id-token": "write"}) == (publish["needs"], publish["permissions"])
    assert "id-token" not in build["permissions"]


def test_the_readme_installs_what_exists() -> None:
    """No package index has the project before its first release, so that a clone is installed.

    Regression: the first command of the README failed with ``pip install gpuqueue-server``.
    """
    readme = (ROOT / "README.md").read_text()

    assert "pip install . " in readme
    assert "pip install gpuqueue" not in readme


def test_extras_are_named_in_one_form() -> None:
    """A message or page installs an extra by the name of the package, which works without the repository.

    The code makes this sentence in one place.
    """
    python = [path for part in ("gpuqueue", "workers", "benchmarks") for path in (ROOT / part).rglob("*.py")]
    texts = {path: path.read_text() for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *python)}
    form = re.compile(r"""(?:gpuqueue-server\[|install_extra\(["'])(\w+)""")
    extras = {extra for text in texts.values() for extra in form.findall(text)}

    assert [] == [path for path, text in texts.items() if re.search(r"in a clone|pip install[^\n]*\.\[", text)]
    assert {"all", "examples", "kubernetes", "mcp", "notify", "plot", "postgres", "python", "service"} == extras
    assert extras <= set(metadata("gpuqueue-server").get_all("Provides-Extra", []))
    made = [path for path, text in texts.items() if "'gpuqueue-server[" in text and path in python]
    assert [ROOT / "gpuqueue" / "errors.py"] == made


def test_the_demo_asks_for_what_its_training_uses() -> None:
    """The first job that a newcomer sees is not above its request.

    Regression: it asked for 1G, and with a CUDA build of torch on Python 3.13 it used 1.2G.
    """
    assert "examples/train.py --mem 2G" in (ROOT / "dev.py").read_text()


def test_the_version_of_a_tag_is_that_of_the_package() -> None:
    """The release workflow compares the tag with this output."""
    done = subprocess.run([sys.executable, ROOT / "dev.py", "version"], capture_output=True, text=True, check=True)

    assert version("gpuqueue-server") == done.stdout.strip()


@pytest.mark.full
def test_output_of_pip_is_shown_only_if_pip_fails(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``dev.py`` prints what pip says, with its warnings, only with the error of pip.

    Regression: with a package index that was not there, the demo printed hundreds of warnings.
    """
    monkeypatch.syspath_prepend(ROOT)
    dev = runpy.run_path(str(ROOT / "dev.py"))
    nowhere = ("--no-index", "--find-links", "/nowhere")

    assert 0 == dev["install"](sys.executable, *nowhere, "--requirement", "/dev/null")
    quiet = capfd.readouterr()
    assert 0 != dev["install"](sys.executable, *nowhere, "no-such-package")
    failed = capfd.readouterr()

    assert (1, "") == (len(quiet.out.strip().splitlines()), quiet.err)  # only the command itself
    assert "Looking in links: " in failed.out
    assert "No matching distribution found for no-such-package" in failed.out
    assert 1 == len(dev["FAILED"])


def test_the_hooks_are_the_linters_of_dev_py() -> None:
    """The hooks run the linters of ``dev.py lint``.

    A commit that passes the hooks passes ``dev.py lint``, except for the check of the docs/ site.
    """
    hooks = YAML(typ="safe").load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    gate = (ROOT / "dev.py").read_text()

    for hook in hooks:
        program = hook["entry"].split()[0].removeprefix(".venv/bin/")
        assert f'BIN / "{program}"' in gate, program
