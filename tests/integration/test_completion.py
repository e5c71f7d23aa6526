"""TAB: what a shell is offered, from a real store, and that it stays silent where there is none."""

from __future__ import annotations

import socket
import subprocess
import time
from pathlib import Path

import pytest
from factories import BOB, make_device, make_offer, make_spec, must_claim, serve
from site_of_one import BIN, Site
from terminal import Terminal

from gpuqueue.book import migrate
from gpuqueue.book.book import Book
from gpuqueue.cli.completing import LIMIT_S, VARIABLE
from workers.recorder import Recorder

GPUQUEUE = str(BIN / "gpuqueue")


def asked(site: Site, line: str, shell: str = "bash", **environ: str) -> subprocess.CompletedProcess[str]:
    """Ask as the shell does when TAB is pressed at the end of *line*."""
    words = line.split(" ")
    said = {
        "COMP_WORDS": line if shell != "fish" else " ".join(words[:-1]),
        "COMP_CWORD": str(len(words) - 1) if shell != "fish" else words[-1],
        VARIABLE: f"{shell}_complete",
    }
    return subprocess.run(
        [GPUQUEUE],
        env={**site.environ, **said, **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def offered(site: Site, line: str) -> list[str]:
    """Return what bash would be offered."""
    said = asked(site, line)
    assert (0, "") == (said.returncode, said.stderr)
    return said.stdout.splitlines()


@pytest.fixture
def three(site: Site) -> Site:
    """Return a site where job 1 runs, 2 waits and 3, of somebody else, is held."""
    serve(site.queue, make_offer(host=site.settings.host, pool="lab"))
    site.queue.submit(make_spec())
    must_claim(site.queue, host=site.settings.host)
    site.queue.submit(make_spec(mem_bytes=2**34, tags=("best",)))
    site.queue.hold(site.queue.submit(make_spec(account=BOB)).id)
    return site


@pytest.mark.parametrize(
    ("line", "items"),
    [
        ("gpuqueue su", ["plain,submit"]),
        ("gpuqueue queue --us", ["plain,--user"]),
        ("gpuqueue show ", ["plain,1", "plain,2", "plain,3"]),
        ("gpuqueue cancel 1 2 ", ["plain,3"]),
        ("gpuqueue cancel 2", ["plain,2"]),
        ("gpuqueue hold ", ["plain,2"]),
        ("gpuqueue release ", ["plain,3"]),
        ("gpuqueue why ", ["plain,2", "plain,3"]),
        ("gpuqueue queue --user ", ["plain,ada", "plain,bob"]),
        ("gpuqueue history --user b", ["plain,bob"]),
        ("gpuqueue history --device GPU", ["plain,GPU-0"]),
        ("gpuqueue drain ", ["plain,0"]),
        ("gpuqueue submit --after ", ["plain,1", "plain,2", "plain,3"]),
        ("gpuqueue submit --pool ", ["plain,lab"]),
        ("gpuqueue submit --priority u", ["plain,urgent"]),
        ("gpuqueue submit --device ", ["plain,gpu", "plain,cpu", "plain,any", "plain,0"]),
        ("gpuqueue run --device-type ", ["plain,24G", "plain,Test"]),
        ("gpuqueue edit 2 --pool ", ["plain,lab"]),
        ("gpuqueue submit --tag b", ["plain,best"]),
        ("gpuqueue history --tag b", ["plain,best"]),
        ("gpuqueue history --model T", ["plain,Test"]),
        ("gpuqueue submit tra", ["file,tra"]),
        ("gpuqueue submit train.py --mem 1G -- --da", ["file,--da"]),
        ("gpuqueue submit --cwd sr", ["dir,sr"]),
        ("gpuqueue completion f", ["plain,fish"]),
        ("gpuqueue frobnicate ", []),
        ("gpuqueue show seven ", []),
    ],
)
def test_what_lives_is_offered(three: Site, line: str, items: list[str]) -> None:
    """Each place gets what may stand there, and no more."""
    found = offered(three, line)
    assert items == found or (items == [] and not any(item.startswith("plain,1") for item in found))


def test_retry_is_offered_what_ended_badly(three: Site) -> None:
    """The one command that is for jobs that are over."""
    assert not any(offered(three, "gpuqueue retry "))  # no book yet
    three.queue.cancel(2)
    migrate.upgrade(three.settings.database_url)
    book = Book(three.settings.database_url)
    Recorder(three.settings, three.queue, book).record(0)
    book.close()

    assert ["plain,2"] == offered(three, "gpuqueue retry ")
    assert not any(offered(three, "gpuqueue retry 2 "))


def test_other_hosts_devices_go_by_uuid(site: Site) -> None:
    """An index would mean this host's; HOST:INDEX would break at the colon."""
    serve(site.queue, make_offer("GPU-far", host="far", device=make_device("GPU-far")))

    assert ["plain,GPU-far"] == offered(site, "gpuqueue drain ")


def test_zsh_and_fish_say_whose_job_it_is(three: Site) -> None:
    """An id alone tells nobody anything."""
    assert "plain\n3\nheld, bob, job\n" in asked(three, "gpuqueue show ", "zsh").stdout
    assert "held, bob, job" in asked(three, "gpuqueue show ", "fish").stdout


def test_a_store_that_is_silent_offers_nothing_soon(site: Site) -> None:
    """Away, or there and saying nothing: no line, no traceback, and nobody waits."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for url in ("redis://127.0.0.1:1/0", f"redis://127.0.0.1:{silent.getsockname()[1]}/0", "nonsense"):
            began = time.monotonic()
            said = asked(site, "gpuqueue show ", GPUQUEUE_REDIS_URL=url)
            took_s = time.monotonic() - began
            assert ("", "") == (said.stdout.strip(), said.stderr)
            # The store's part is LIMIT_S; the rest is Python's start on a machine that may have much to do.
            assert took_s < LIMIT_S + 4


def test_a_strange_question_is_no_traceback(site: Site) -> None:
    """Whatever the variable holds."""
    for instruction in ("bash_complete", "nonsense", "tcsh_complete", ""):
        said = subprocess.run(
            [GPUQUEUE],
            env={**site.environ, VARIABLE: instruction},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (1, "", "") == (said.returncode, said.stdout, said.stderr)


def test_a_name_that_a_shell_would_obey_is_not_offered(site: Site) -> None:
    """What stands in a job's name is shown as words, and never typed."""
    site.queue.submit(make_spec(name="$(reboot)\x1b[31m\n"))

    assert ["plain,1"] == offered(site, "gpuqueue show ")
    assert "\x1b" not in asked(site, "gpuqueue show ", "zsh").stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_names_what_the_program_listens_to(site: Site, shell: str) -> None:
    """It needs neither a store nor the shell itself to be printed."""
    script = site.cli("completion", shell).stdout

    assert f"{VARIABLE}={shell}_complete" in script
    assert "gpuqueue" in script


def test_tab_works_in_a_real_bash(three: Site, tmp_path: Path) -> None:
    """Typed on a terminal: a command, then an id."""
    start = tmp_path / "rc"
    start.write_text('PS1="ready> "\neval "$(gpuqueue completion bash)"\nbind "set bell-style none"\n')

    with Terminal(["/bin/bash", "--noprofile", "--rcfile", str(start), "-i"], three.environ) as bash:
        bash.shows("ready>")
        bash.press("gpuqueue rel\t")
        bash.shows("ready> gpuqueue release")
        bash.press("\t")
        bash.shows("ready> gpuqueue release 3")
        bash.press("\r")
        bash.shows("job 3: queued")
