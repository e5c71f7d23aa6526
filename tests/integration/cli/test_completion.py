"""Shell completion: what is offered with a real store, and that it prints nothing without one."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from factories import BOB, make_device, make_offer, make_spec, must_claim, serve
from site_of_one import BIN, Site
from terminal import Terminal

from gpuqueue.cli.completion.candidates import VARIABLE
from gpuqueue.history import migrate
from gpuqueue.history.database import HistoryDatabase
from workers.services.recorder import Recorder

GPUQUEUE = str(BIN / "gpuqueue")


def asked(site: Site, line: str, shell: str = "bash", **environ: str) -> subprocess.CompletedProcess[str]:
    """Complete *line* as the shell does when TAB is pressed at its end."""
    words = line.split(" ")
    output = {
        "bash": {"COMP_LINE": line, "COMP_WORD": re.split("[ =:]", line)[-1]},  # bash splits words there
        "zsh": {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)},
        "fish": {"COMP_WORDS": " ".join(words[:-1]), "COMP_CWORD": words[-1]},
    }[shell]
    return report(site, **output, **{VARIABLE: f"{shell}_complete"}, **environ)


def report(site: Site, **environ: str) -> subprocess.CompletedProcess[str]:
    """Start gpuqueue with the variables of a shell and no arguments."""
    return subprocess.run(
        [GPUQUEUE],
        env={**site.environ, **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def offered(site: Site, line: str) -> list[str]:
    """Return what bash is offered."""
    output = asked(site, line)
    assert (0, "") == (output.returncode, output.stderr)
    return output.stdout.splitlines()


@pytest.fixture
def three(site: Site) -> Site:
    """Return a site where job 1 runs, job 2 waits and job 3, another user's, is held."""
    offer = make_offer(host=site.settings.host, pool="lab")
    serve(site.queue, offer)
    site.queue.devices.announce(offer, worker="worker-GPU-0", pid=1, boot_id="boot", environments=["jax", "torch-2.6"])
    site.queue.requests.submit(make_spec())
    must_claim(site.queue, host=site.settings.host)
    site.queue.requests.submit(make_spec(mem_bytes=2**34, tags=("best",)))
    site.queue.jobs.hold(site.queue.requests.submit(make_spec(account=BOB)).id)
    return site


@pytest.mark.full
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
        ("gpuqueue submit --environment t", ["plain,torch-2.6"]),
        ("gpuqueue submit --priority u", ["plain,urgent"]),
        ("gpuqueue submit --device ", ["plain,gpu", "plain,cpu", "plain,any", "plain,0"]),
        ("gpuqueue run --device-type ", ["plain,24G", "plain,Test"]),
        ("gpuqueue edit 2 --pool ", ["plain,lab"]),
        ("gpuqueue submit --tag b", ["plain,best"]),
        ("gpuqueue history --tag b", ["plain,best"]),
        ("gpuqueue history --model T", ["plain,Test"]),
        ("gpuqueue history --user=b", ["plain,bob"]),
        ("gpuqueue history --user=", ["plain,ada", "plain,bob"]),
        ("gpuqueue submit --priority=u", ["plain,urgent"]),
        ("gpuqueue submit --cwd=sr", ["dir,sr"]),
        ("gpuqueue queue -u=b", [""]),
        ("gpuqueue history --columns pea", ["plain,peak_bytes", "plain,peak_source"]),
        ("gpuqueue history --columns id,pea", ["plain,id,peak_bytes", "plain,id,peak_source"]),
        ("gpuqueue history --columns=id,peak_source,pea", ["plain,id,peak_source,peak_bytes"]),
        ("gpuqueue submit --retry-on failed,l", ["plain,failed,lost"]),
        ("gpuqueue submit --after 1,", ["plain,1,2", "plain,1,3"]),
        ("gpuqueue submit --after 1:a", ["plain,any"]),
        ("gpuqueue submit --after 2:any,1:", ["plain,ok", "plain,any", "plain,fail", "plain,corr"]),
        ("gpuqueue submit --device 0,GPU", ["plain,0,GPU-0"]),
        ("gpuqueue up --devices gpu,c", ["plain,gpu,cpu"]),
        ("gpuqueue show '2", ["plain,2"]),
        ("gpuqueue submit tra", ["file,tra"]),
        ("gpuqueue estimate tra", ["file,tra"]),
        ("gpuqueue estimate --python .ve", ["file,.ve"]),
        ("gpuqueue simulate tra", ["file,tra"]),
        ("gpuqueue stats --plot la", ["file,la"]),
        ("gpuqueue show 1 --plot la", ["file,la"]),
        ("gpuqueue submit train.py --mem 1G -- --da", ["file,--da"]),
        ("gpuqueue submit --cwd sr", ["dir,sr"]),
        ("gpuqueue completion f", ["plain,fish"]),
        ("gpuqueue frobnicate ", []),
        ("gpuqueue show seven ", []),
    ],
)
def test_what_lives_is_offered(three: Site, line: str, items: list[str]) -> None:
    """Each position offers what is valid there, and nothing else."""
    found = offered(three, line)
    assert items == found or (items == [] and not any(item.startswith("plain,1") for item in found))


@pytest.mark.full
def test_retry_is_offered_what_ended_badly(three: Site) -> None:
    """Only ``retry`` offers ended jobs, and only those that failed."""
    assert not any(offered(three, "gpuqueue retry "))  # there is no history yet
    three.queue.jobs.cancel(2)
    migrate.upgrade(three.settings.database_url)
    database = HistoryDatabase(three.settings.database_url)
    Recorder(three.settings, three.queue, database).record(0)
    database.close()

    assert ["plain,2"] == offered(three, "gpuqueue retry ")
    assert not any(offered(three, "gpuqueue retry 2 "))


@pytest.mark.full
def test_a_device_goes_on_as_it_was_begun(site: Site) -> None:
    """An index alone is one of this host, and after a host come its devices. Bash splits the word at the colon."""
    here = site.settings.host
    serve(site.queue, make_offer("GPU-near", host=here, device=make_device("GPU-near")))
    serve(site.queue, make_offer("GPU-far", host="far", device=make_device("GPU-far")))

    assert {"plain,far:0", "plain,0"} == set(offered(site, "gpuqueue drain "))
    assert ["plain,far:0"] == offered(site, "gpuqueue resume fa")
    assert ["plain,0"] == offered(site, "gpuqueue resume far:")
    assert ["plain,0"] == offered(site, f"gpuqueue history --device={here}:")
    assert ["plain,GPU-far"] == offered(site, "gpuqueue drain GPU-f")
    assert ["plain,0,far:0"] == offered(site, "gpuqueue submit --device 0,f")
    assert ["plain,0"] == offered(site, f"gpuqueue submit --device {here}:0,far:")
    assert "plain\nfar\\:0\n" in asked(site, "gpuqueue drain far:", "zsh").stdout


def test_zsh_and_fish_get_the_whole_word(three: Site) -> None:
    """Zsh and fish get the whole word with the option's name, because they replace what was typed."""
    assert "plain\n--user=bob\n_\n" == asked(three, "gpuqueue history --user=b", "zsh").stdout
    assert "plain,--user=bob\n" == asked(three, "gpuqueue history --user=b", "fish").stdout


def test_zsh_and_fish_say_whose_job_it_is(three: Site) -> None:
    """Zsh and fish show state, user and name beside an id, which alone says little."""
    assert "plain\n3\nheld, bob, job\n" in asked(three, "gpuqueue show ", "zsh").stdout
    assert "held, bob, job" in asked(three, "gpuqueue show ", "fish").stdout


@pytest.mark.full
def test_a_store_that_is_silent_offers_nothing(site: Site) -> None:
    """A store that is away or does not answer gives no candidates and no traceback."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for url in ("redis://127.0.0.1:1/0", f"redis://127.0.0.1:{silent.getsockname()[1]}/0", "nonsense"):
            output = asked(site, "gpuqueue show ", GPUQUEUE_REDIS_URL=url)
            assert ("", "") == (output.stdout.strip(), output.stderr)


def test_a_strange_question_is_no_traceback(site: Site) -> None:
    """Any value of the completion variable gives no traceback."""
    for instruction in ("bash_complete", "nonsense", "tcsh_complete", ""):
        output = subprocess.run(
            [GPUQUEUE],
            env={**site.environ, VARIABLE: instruction},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (1, "", "") == (output.returncode, output.stdout, output.stderr)


def test_a_name_that_a_shell_would_obey_is_not_offered(site: Site) -> None:
    """Job names are only shown as descriptions. They are never inserted into the command line."""
    site.queue.requests.submit(make_spec(name="$(reboot)\x1b[31m\n"))

    assert ["plain,1"] == offered(site, "gpuqueue show ")
    assert "\x1b" not in asked(site, "gpuqueue show ", "zsh").stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_names_what_the_program_listens_to(site: Site, shell: str) -> None:
    """The completion script sets the program's variable. Printing it needs neither a store nor the shell."""
    script = site.cli("completion", shell).stdout

    assert f"{VARIABLE}={shell}_complete" in script
    assert "gpuqueue" in script


def test_tab_works_in_a_real_bash(three: Site, tmp_path: Path) -> None:
    """A real bash completes a command, then an id."""
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


@pytest.mark.full
def test_tab_goes_on_behind_an_equals_sign_a_comma_and_a_colon(three: Site, tmp_path: Path) -> None:
    """Completion works after ``=``, a comma and a colon.

    Bash splits words at two of these and replaces only the last part.
    """
    start = tmp_path / "rc"
    start.write_text('PS1="> "\neval "$(gpuqueue completion bash)"\nbind "set bell-style none"\n')
    host = three.settings.host
    typed = {
        "gpuqueue history --user=b": "--user=bob",
        "gpuqueue history --user=a": "--user=ada",
        "true && gpuqueue history --columns id,na": "--columns id,name",
        f"gpuqueue drain {host}:": f"drain {host}:0",
        f"gpuqueue drain '{host}:": f"drain '{host}:0'",
        "gpuqueue submit --after 1:f": "--after 1:fail",
        "gpuqueue submit --device=0,GP": "--device=0,GPU-0",
        f"cd {tmp_path}; gpuqueue submit --cwd=plac": "--cwd=place/",
        "gpuqueue estimate slo": "estimate slow.py",
    }
    (tmp_path / "place").mkdir()
    (tmp_path / "slow.py").touch()

    with Terminal(["/bin/bash", "--noprofile", "--rcfile", str(start), "-i"], three.environ, columns=200) as bash:
        bash.shows(">")
        bash.press(f"cd {tmp_path}\r")
        for begun, whole in typed.items():
            bash.press(f"{begun}\t")
            bash.shows(whole)
            bash.press("\x15")  # Ctrl-U clears the line
            bash.hides(whole)


@pytest.mark.skipif(shutil.which("fish") is None, reason="no fish here")
@pytest.mark.parametrize(
    ("typed", "whole"),
    [
        ("history --user=b", "--user=bob"),
        ("history --columns id,pea", "id,peak_bytes"),
        ("resume HOST:", "HOST:0"),
        ("show ", "3"),
        ("submit --cwd=plac", "--cwd=place/"),
        ("submit --cwd plac", "place/"),
    ],
)
def test_a_real_fish_completes_the_whole_word(three: Site, tmp_path: Path, typed: str, whole: str) -> None:
    """A real fish completes whole words, asked as on a key press."""
    (tmp_path / "place").mkdir()
    host = three.settings.host
    script = f"gpuqueue completion fish | source; complete --do-complete 'gpuqueue {typed.replace('HOST', host)}'"
    words = ["fish", "--no-config", "--command", script]
    done = subprocess.run(
        words, env=three.environ, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )

    assert whole.replace("HOST", host) in [line.split("\t")[0] for line in done.stdout.splitlines()]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh here")
def test_a_real_zsh_completes_the_whole_word(three: Site, tmp_path: Path) -> None:
    """A real zsh completes whole words, also files after an option."""
    (tmp_path / ".zshrc").write_text(
        'PS1="> "\nautoload -Uz compinit; compinit -u -D\neval "$(gpuqueue completion zsh)"\nunsetopt beep\n'
    )
    (tmp_path / "place").mkdir()
    host = three.settings.host
    typed = {
        "gpuqueue history --user=b": "--user=bob",
        "gpuqueue history --columns id,na": "--columns id,name",
        f"gpuqueue resume {host}:": f"resume {host}:0",
        "gpuqueue submit --cwd=plac": "--cwd=place/",
    }

    environ = {**three.environ, "ZDOTDIR": str(tmp_path)}
    with Terminal(["zsh", "-d", "-i"], environ, columns=200, directory=tmp_path) as zsh:
        zsh.shows(">")
        for begun, whole in typed.items():
            zsh.press(f"{begun}\t")
            zsh.shows(whole)
            zsh.press("\x15")
            zsh.hides(whole)
