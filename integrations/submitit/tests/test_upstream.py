"""The tests that submitit has for its executors, from the installed package, with the executor of this plug-in.

Not taken are tests of what it does not have, of what only the local executor has, and of submitit's own fakes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import submitit
from site_of_one import Site

#: Tests of submitit that do not apply, by file -> why.
NOT_OURS = {
    "local/test_local.py": {
        **dict.fromkeys(
            ("test_local_job", "test_get_first_task_error", "test_stdout"),
            "several tasks: refused, see test_parameters",
        ),
        **dict.fromkeys(("test_killed", "test_cancel"), "the process and the words of the local executor: test_queue"),
        **dict.fromkeys(
            ("test_requeuing", "test_custom_checkpoint"), "a time limit of 3 s, too short on a busy machine: test_queue"
        ),
        "test_make_subprocess": "the controller of the local executor",
        "test_setup": "by the name local: test_parameters",
    },
    "core/test_utils.py": {"test_command_function_deadlock": "a time limit of 2 s"},
    "test_helpers.py": {"test_as_completed": "functions that must take less than 1.5 s, with their start"},
}
#: Single tests of further files.
MORE = (
    *("auto/test_auto.py::test_redirect_stdout_stderr", "test_pickle.py::test_nested_pickling"),
    *("core/test_plugins.py::test_env", "core/test_plugins.py::test_executors"),
)


@pytest.mark.full
def test_the_tests_of_submitit_pass(running_queue: Site, tmp_path: Path) -> None:
    """Code that runs on another executor of submitit runs on this one."""
    assert running_queue is not None
    home = Path(submitit.__file__).parent
    names = [f"{file}::{name}" for file, tests in NOT_OURS.items() for name in tests]
    skipped = [f"--deselect={home.name}/{name}" for name in names]
    options = ["-c", os.devnull, f"--rootdir={home.parent}", "-p", "in_place_of_local", "-p", "no:cacheprovider"]
    path = os.pathsep.join([*sys.path, str(Path(__file__).parent)])
    environ = {name: value for name, value in os.environ.items() if name != "SUBMITIT_LOG_LEVEL"}

    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-rA",
            *options,
            *skipped,
            *(str(home / each) for each in (*NOT_OURS, *MORE)),
        ],
        cwd=tmp_path,
        env={**environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )

    assert 0 == done.returncode, done.stdout + done.stderr
    assert f"{len(names)} deselected" in done.stdout
    assert done.stdout.count("\nPASSED ") >= 20
