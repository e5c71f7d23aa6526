"""Tests the first steps of a new user: the commands, their output, and the message for each mistake."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from own_home import Home
from site_of_one import BIN
from walk import Shell, walk

HALTS = ["up", "submit", "queue", "why", "top", "logs", "cancel", "wait", "history", "stats", "doctor", "down"]


@pytest.mark.full
@pytest.mark.timeout(400)
def test_a_newcomer_gets_through(home: Home, tmp_path: Path) -> None:
    """Each command of the tutorial's first ten minutes works, on a real terminal and simulated devices."""
    with Shell(home.environ, tmp_path) as shell:
        assert HALTS == list(walk(shell, tmp_path))


#: Commands before `gpuqueue up` -> the exit code, and the remedy that the message must name.
BEFORE_UP = {
    "queue": (4, "yet: start one with gpuqueue up"),
    "submit train.py --mem 1G": (4, "yet: start one with gpuqueue up"),
    "top": (4, "yet: start one with gpuqueue up"),
    "gpus": (4, "yet: start one with gpuqueue up"),
    "history": (4, "run gpuqueue up, or gpuqueue db upgrade"),
    "up --devices four": (2, "write auto, gpu, cpu, slurm, or simulated ones like sim:4x24G"),
    "status": (4, "start: gpuqueue up"),
}

#: The same for a site where job 1 has failed, with two simulated devices of 4 GiB.
MISTAKES = {
    # an unknown word
    "sumbit train.py": (2, "Did you mean submit? See gpuqueue --help"),
    "frobnicate": (2, "See gpuqueue --help"),
    "submit train.py --memory 1G": (2, "Did you mean '--mem'?"),
    "db downgrade": (2, "Did you mean 'upgrade'?"),
    "completion tcsh": (2, "SHELL: 'tcsh' is not valid: use bash, zsh or fish"),
    # a missing argument
    "submit": (2, "name a script (gpuqueue submit train.py --mem 6G), or put a command after --"),
    "submit train.py": (2, "--mem 6G"),
    "submit --mem 1G": (2, "name a script"),
    "submit train.py --mem": (2, "Option '--mem' requires an argument. See gpuqueue submit --help"),
    "show": (2, "See gpuqueue show --help"),
    "edit 1": (2, "gpuqueue edit 1 --mem 8G"),
    "drain": (2, "name the devices (an index, HOST:INDEX or a UUID), or use --all"),
    "simulate": (2, "gpuqueue simulate trace.csv --devices 4x24G"),
    "probe": (2, "gpuqueue probe train.py"),
    # a size, a time, a number
    "submit train.py --mem 6": (2, "add the unit: 6M or 6G"),
    "submit train.py --mem lots": (2, "write it like 6G or 512MiB"),
    "submit train.py --mem -1G": (2, "write it like 6G or 512MiB"),
    "submit train.py --mem 1G --time 5": (2, "add the unit: 5s, 5m or 5h"),
    "submit train.py --mem 1G --time soon": (2, "write it like 90s, 15m, 2h or 1:30:00"),
    "submit train.py --mem 1G --gpus two": (2, "--gpus: 'two' is not valid: give a whole number, such as 2"),
    "submit train.py --mem 1G --gpus 0": (2, "give a number from 1 to 64"),
    "submit train.py --mem 1G --begin yesterday": (2, "write 2h, 16:00, 3am, tomorrow, "),
    "submit train.py --mem 1G --array 5-1": (2, "write the smaller number first"),
    "submit train.py --mem 1G --priority highest": (2, "'highest' is not valid: use low, normal, high or urgent"),
    "submit train.py --mem 1G --env NAME": (2, "write it like --env KEY=VALUE"),
    "probe train.py --flat soon": (2, "write it like 90s, 15m, 2h or 1:30:00"),
    "stats --learning --by day": (2, "use it with --since, --until, --user and --json"),
    "history --since lastweek": (2, "write 7d, 12h, yesterday, 2026-11-01 or 2026-11-01T09:00"),
    "history --columns id,colour": (2, "choose from id, name, user"),
    "top --interval 0": (2, "give a number from 0.2 to 3600"),
    # more than the site has
    "submit train.py --mem 80G": (2, "ask for less memory"),
    "submit train.py --mem 1G --gpus 3": (2, "ask for fewer devices"),
    "submit train.py --mem 1G --pool big": (2, "choose another pool, or none"),
    "submit train.py --mem 1G --device-type A100": (
        2,
        "there are 2 of Simulated 4G: give another --device-type, or none",
    ),
    "submit train.py --mem 1G --device tpu": (2, "lists them by host and index; or write gpu, cpu or any"),
    # a file or directory that does not exist
    "submit tran.py --mem 1G": (2, "To run a command, put it after --"),
    "estimate tran.py": (2, "name a script that is there"),
    "probe tran.py": (2, "To run a command, put it after --"),
    "submit notes.txt --mem 1G": (2, "put its interpreter and it after --"),
    "submit train.py --mem 1G --cwd /nowhere": (2, "name one that is there with --cwd"),
    "submit train.py --mem 1G --python /nowhere": (2, "name one that is there with --python"),
    "submit train.py --mem 1G --lr 3": (2, "What belongs to the script goes after --. See gpuqueue submit --help"),
    "submit train.py three --mem 1G": (2, "(three). What belongs to the script goes after --."),
    "stats --plot lab.docx": (2, "name a file that ends in .png or .svg"),
    "stats --plot /nowhere/lab.svg": (2, "name a file in a directory that you may write to"),
    "simulate nowhere.csv --devices 24G": (2, "gpuqueue simulate --example prints one"),
    # an unknown job or device, or one in another state
    "show 99": (3, "see gpuqueue queue and gpuqueue history"),
    "show train.py": (2, "write 17, or of an array a member 17_2 or a part 17_5-9. See gpuqueue show --help"),
    "submit train.py --mem 1G --after 99": (3, "see gpuqueue queue and gpuqueue history"),
    "drain 7": (2, "gpuqueue gpus lists them by host and index"),
    "cancel 1": (5, "see gpuqueue show 1"),
    "hold 1": (5, "see gpuqueue show 1"),
    "edit 1 --mem 2G": (5, "only a job that waits can be edited"),
    "up --devices sim:2x6G": (5, "for other devices run gpuqueue down first"),
}


def unhelpful(home: Home, mistakes: dict[str, tuple[int, str]]) -> dict[str, str]:
    """Return the output for each mistake that did not give one line with the remedy and the right exit code."""
    found = {}
    for words, (code, remedy) in mistakes.items():
        done = subprocess.run(
            [str(BIN / "gpuqueue"), *words.split()],
            env=home.environ,
            cwd=home.state,
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
        printed = done.stderr or done.stdout.splitlines()[-1] + "\n"
        if code != done.returncode or remedy not in printed or printed.count("\n") != 1:
            found[words] = f"{done.returncode}: {done.stdout}{done.stderr}"
    return found


@pytest.mark.full
@pytest.mark.timeout(300)
def test_every_mistake_is_reported_with_a_remedy(home: Home) -> None:
    """Each mistake prints one line that names the remedy, and has the documented exit code."""
    (home.state / "train.py").write_text("print(1)")
    (home.state / "notes.txt").write_text("buy milk")
    assert {} == unhelpful(home, BEFORE_UP)
    home("up", "--devices", "sim:2x4G")
    home("run", "--mem", "1G", "--", "sh", "-c", "exit 3", code=3)

    assert {} == unhelpful(home, MISTAKES)
    lines = map(str.split, home("history").splitlines())  # with a head, and with a footnote if the run was measured
    assert ["1"] == [words[0] for words in lines if words and words[0].isdigit()], "and none of them left a job"
