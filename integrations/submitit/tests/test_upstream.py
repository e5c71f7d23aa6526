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

LOCAL = "local/test_local.py"
#: Its tests that do not apply -> why.
NOT_OURS = {
    **dict.fromkeys(("test_local_job", "test_get_first_task_error", "test_stdout"), "several tasks: they are refused"),
    **dict.fromkeys(("test_killed", "test_cancel"), "the process and the words of the local executor: test_queue"),
    **dict.fromkeys(("test_requeuing", "test_custom_checkpoint"), "time limits of 2 s, with the start: test_queue"),
    "test_make_subprocess": "the controller of the local executor",
    "test_setup": "the executor by the name local: test_parameters",
}
#: Tests of other files that use an executor.
MORE = (
    *("auto/test_auto.py::test_redirect_stdout_stderr", "test_pickle.py::test_nested_pickling"),
    *("core/test_plugins.py::test_env", "core/test_plugins.py::test_executors"),
)


@pytest.mark.full
def test_the_tests_of_submitit_pass(running_queue: Site, tmp_path: Path) -> None:
    """Code that runs on another executor of submitit runs on this one."""
    assert running_queue is not None
    home = Path(submitit.__file__).parent
    left_out = [f"--deselect={home.name}/{LOCAL}::{name}" for name in NOT_OURS]
    # Its environment may be in this repository, whose conftest.py is not for those tests.
    options = ["-c", os.devnull, f"--rootdir={home.parent}", f"--confcutdir={home}", "-q", "-rA"]
    plugins = ["-p", "in_place_of_local", "-p", "no:schemathesis", "-p", "no:cacheprovider"]
    files = [str(home / each) for each in (LOCAL, *MORE)]
    path = os.pathsep.join([*sys.path, str(Path(__file__).parent)])
    environ = {name: value for name, value in os.environ.items() if name != "SUBMITIT_LOG_LEVEL"}

    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *plugins, *left_out, *files],
        cwd=tmp_path,
        env={**environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )

    assert 0 == done.returncode, done.stdout + done.stderr
    assert f"{len(NOT_OURS)} deselected" in done.stdout
    assert done.stdout.count("\nPASSED ") >= 16, done.stdout
