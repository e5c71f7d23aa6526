"""Notifications about the ends of jobs, with a real recorder, a real web server and a real mail server."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from bounded import until
from factories import make_offer, make_spec, must_claim, serve
from listeners import Hook, MailBox, mail_server, web_hook
from site_of_one import Site

from gpuqueue.model.job import JobState
from gpuqueue.model.notification import Notification
from gpuqueue.model.run import Ending

SECRET = "sEcReT-T0ken"  # noqa: S105 - the tests check that it is never shown


@pytest.fixture
def hook() -> Iterator[Hook]:
    """Return a web server that stores what is posted."""
    with web_hook() as made:
        yield made


@pytest.fixture
def box() -> Iterator[MailBox]:
    """Return a mail server that stores what is sent."""
    with mail_server() as made:
        yield made


@pytest.fixture
def notify_site(store_url: str, tmp_path: Path, hook: Hook, box: MailBox) -> Iterator[Site]:
    """Return a site with a web hook and a mail account. Their secrets are in the settings of this machine."""
    targets = f"team={hook.url(SECRET)} mail=mailto://ann:{SECRET}@127.0.0.1:{box.port}?mode=insecure&from=q@site.org"
    made = Site(tmp_path / "state", store_url, GPUQUEUE_NOTIFY=targets)
    yield made
    made.stop()


def ready(site: Site) -> None:
    """Start a recorder and wait until its sender has announced its targets."""
    site.start_recorder()
    until(site.queue.senders.all, what=f"a sender\n{site.log()}")


def submit(site: Site, *words: str, command: tuple[str, ...] = ("true",)) -> int:
    """Submit on the command line and return the id."""
    return int(site.cli("submit", "--mem", "64M", *words, "--", *command).stdout)


def end(site: Site, code: int = 0) -> int:
    """Claim the next job on a device without a worker, and end it. Return its id."""
    claimed = must_claim(site.queue)
    state = JobState.FAILED if code else JobState.SUCCEEDED
    ending = Ending.from_status(code)
    site.queue.runs.finish(claimed.job_id, claimed.token, state=state, ending=ending, duration_s=11520.0, devices=())
    return claimed.job_id


@pytest.mark.full
def test_a_failed_job_notifies_a_web_hook_and_a_person(notify_site: Site, hook: Hook, box: MailBox) -> None:
    """A notification says what ran, how it ended, where, its memory, the last log lines, and where to find more."""
    ready(notify_site)
    notify_site.start_worker()
    script = 'for i in 1 2 3 4 5 6 7 8 9 10 11 12; do echo line $i; done; printf "\\033[31mboom\\n"; exit 3'
    to = ("--on-end", "team", "--on-fail", "bob@example.org", "--name", "train")

    job = submit(notify_site, *to, command=("sh", "-c", script))

    notify_site.until_recorded(job)
    (post,) = until(lambda: hook.reported(SECRET), what=f"a post\n{notify_site.log()}")
    ((sender, recipients, mail),) = until(lambda: box.mails, what=f"a mail\n{notify_site.log()}")
    assert post["title"].startswith(f"job {job} (train) failed: exit 3 after 0 s on {notify_site.settings.host}:0")
    assert ("q@site.org", ("bob@example.org",)) == (sender, recipients)
    assert post["title"] == mail["Subject"]
    body = post["message"]
    assert "asked 64M" in body
    assert "command  sh -c" in body
    assert "line 3\n" not in body
    assert "line 4\n" in body
    assert "\nboom\n" in body, "its colour is left out"
    assert body.endswith(f"\ngpuqueue show {job}")
    part = mail.get_body(("plain",))
    assert part is not None
    assert f"gpuqueue show {job}" in part.get_content()
    until(lambda: "sent 20" in notify_site.cli("show", str(job)).stdout, what="that it was sent")


@pytest.mark.full
def test_success_is_no_failure_and_each_target_is_notified_once(notify_site: Site, hook: Hook, box: MailBox) -> None:
    """Each target gets one notification. After a success one that is only for failures is recorded as not needed."""
    serve(notify_site.queue, make_offer())
    ready(notify_site)
    job = submit(notify_site, "--on-fail", "team", "--on-end", hook.url(), "--on-end", "ann@example.org")

    end(notify_site)

    def outcomes() -> list[str]:
        reported = json.loads(notify_site.cli("show", str(job), "--json").stdout)["reported"]
        return [each["outcome"] for each in reported] if all(each["outcome"] for each in reported) else []

    assert ["sent", "sent", "not_needed"] == until(outcomes, what=f"three outcomes\n{notify_site.log()}")
    assert f"job {job} (true) succeeded after 3 h 12 min" in hook.reported()[0]["title"]
    assert (1, 0, 1) == (len(hook.reported()), len(hook.reported(SECRET)), len(box.mails))


@pytest.mark.full
def test_no_secret_is_shown_anywhere(notify_site: Site, hook: Hook) -> None:
    """No secret of a job's URL or of the settings appears in lists, stories, JSON, logs or doctor."""
    serve(notify_site.queue, make_offer())
    ready(notify_site)
    refused = submit(notify_site, "--on-end", f"json://ann:{SECRET}@localhost:1/{SECRET}", "--on-end", "team")
    end(notify_site)
    until(lambda: hook.reported(SECRET), what="a post")
    until(
        lambda: "not sent yet after" in notify_site.cli("show", str(refused)).stdout, what=f"a try\n{notify_site.log()}"
    )

    output = [
        notify_site.cli(*words, check=False)
        for words in (
            ("show", str(refused)),
            ("show", str(refused), "--json"),
            ("history", "--json"),
            ("wait", str(refused), "--json"),
            ("doctor", "--verbose"),
            ("doctor", "--json"),
        )
    ]

    assert "on end     json://…: not sent yet after 1 try: " in output[0].stdout
    assert "on end     team: sent 20" in output[0].stdout
    for done in output:
        assert SECRET not in done.stdout + done.stderr, done.args
    assert SECRET not in notify_site.log()


@pytest.mark.full
@pytest.mark.parametrize("how", ["cancelled", "dependency"])
def test_an_end_without_a_run_is_notified_too(notify_site: Site, hook: Hook, how: str) -> None:
    """A job that ended without a run is notified too, because nobody expects that end."""
    serve(notify_site.queue, make_offer())
    ready(notify_site)
    first = submit(notify_site)
    after = ("--after", str(first)) if how == "dependency" else ("--begin", "2h")
    job = submit(notify_site, "--on-end", "team", *after)

    if how == "cancelled":
        notify_site.cli("cancel", str(job))
    else:
        end(notify_site, 1)

    (post,) = until(lambda: hook.reported(SECRET), what=f"a post\n{notify_site.log()}")
    assert f"job {job} (true) cancelled before it ever ran" in post["title"]


@pytest.mark.full
def test_a_job_that_runs_again_has_not_ended(notify_site: Site, hook: Hook) -> None:
    """A job with retries sends one notification, after its final end."""
    ready(notify_site)
    notify_site.start_worker()
    script = 'test "$GPUQUEUE_ATTEMPT" = 2'

    job = submit(notify_site, "--on-end", "team", "--retries", "1", command=("sh", "-c", script))

    notify_site.cli("edit", str(job), "--begin", "now", check=False)
    until(lambda: hook.reported(SECRET), timeout_s=60, what=f"a post\n{notify_site.log()}")
    assert [f"job {job} (sh) succeeded"] == [post["title"].partition(" after")[0] for post in hook.reported(SECRET)]
    assert 2 == len(notify_site.client.jobs.show(job).runs)


@pytest.mark.full
def test_an_array_notifies_once(notify_site: Site, hook: Hook) -> None:
    """An array sends one notification when all members have ended, with the number of each ending."""
    serve(notify_site.queue, make_offer())
    ready(notify_site)
    array = submit(notify_site, "--on-fail", "team", "--array", "0-9")
    for index in range(9):
        end(notify_site, int(index == 4))
    notify_site.client.jobs.cancel(f"{array}_9")

    (post,) = until(lambda: hook.reported(SECRET), what=f"a post\n{notify_site.log()}")

    assert f"array {array} (true) cancelled: 8 succeeded, 1 failed, 1 cancelled" == post["title"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (
            ["--on-end", "nobody"],
            2,
            "no target is called 'nobody' here (setting notify): there are mail, team; name",
        ),
        (["--on-end", "nonsense://x"], 2, "nothing can be sent to nonsense://…: Apprise knows no such scheme"),
        (["--on-end", ""], 2, "cannot be a target"),
        (["--on-fail", "two words"], 2, "cannot be a target"),
        (["--on-end", "command:true"], 2, "gpuqueue submit --after ID:any"),
        ([each for i in range(17) for each in ("--on-end", f"a{i}@example.org")], 2, "at most 16 targets"),
    ],
)
def test_an_unusable_target_is_refused_at_submit(notify_site: Site, words: list[str], code: int, line: str) -> None:
    """An invalid target is refused at submit in one line that lists the valid ones."""
    serve(notify_site.queue, make_offer())
    ready(notify_site)

    done = notify_site.cli("submit", "--mem", "64M", *words, "--", "true", check=False)

    assert (code, "") == (done.returncode, done.stdout)
    assert line in done.stderr
    assert 1 == done.stderr.count("\n")


@pytest.mark.full
def test_targets_are_listed_and_tried(notify_site: Site, hook: Hook, box: MailBox) -> None:
    """``notify`` lists the targets even before a recorder runs. ``--test`` reports the result without a secret."""
    (before,) = [line.split() for line in notify_site.cli("notify").stdout.splitlines() if line.startswith("team")]
    ready(notify_site)

    listed = json.loads(notify_site.cli("notify", "--json").stdout)
    tried = [notify_site.cli("notify", "--test", to) for to in ("team", "bob@example.org", hook.url())]
    dead = notify_site.cli("notify", "--test", f"json://localhost:1/{SECRET}", check=False)

    host = notify_site.settings.host
    assert ["team", host, "no"] == before
    assert [(host, ["mail", "team"], True)] == [
        (each["host"], each["targets"], "json" in each["schemes"]) for each in listed
    ]
    assert "sent to team (json://…) in " in tried[0].stdout
    assert "sent to bob@example.org (mailto://…) in " in tried[1].stdout
    assert "sent to json://… in " in tried[2].stdout
    assert f"a test from gpuqueue on {host}" == hook.reported(SECRET)[0]["title"] == box.mails[0][2]["Subject"]
    assert ("bob@example.org",) == box.mails[0][1]
    assert (1, "") == (dead.returncode, dead.stdout)
    assert dead.stderr.startswith("gpuqueue: nothing was sent to json://…: ")
    assert SECRET not in dead.stderr


@pytest.mark.full
def test_a_site_may_take_names_alone(store_url: str, tmp_path: Path, hook: Hook) -> None:
    """A site can refuse URLs of jobs, so that its server sends nothing to addresses that users choose.

    The URL is refused at submit and again by the sender.
    """
    site = Site(tmp_path / "state", store_url, GPUQUEUE_NOTIFY=f"team={hook.url(SECRET)}", GPUQUEUE_NOTIFY_URLS="false")
    serve(site.queue, make_offer())
    ready(site)
    other = Site(tmp_path / "other", store_url)  # a user whose settings lack notify_urls

    here, there = (
        each.cli("submit", "--mem", "64M", "--on-end", hook.url(), "--", "true", check=False) for each in (site, other)
    )
    job = site.queue.requests.submit(make_spec(notifications=(Notification(hook.url()), Notification("team")))).id
    end(site)

    assert [5, 5] == [here.returncode, there.returncode]
    assert "this site takes no URLs of jobs (notify_urls): name one of its targets" in here.stderr
    assert here.stderr == there.stderr
    until(lambda: hook.reported(SECRET), what=f"a post\n{site.log()}")
    until(lambda: "takes no URLs of jobs" in site.cli("show", str(job)).stdout, what="why it was not sent")
    assert [] == hook.reported()
    site.stop()
    other.stop()


@pytest.mark.full
def test_who_submits_from_elsewhere_names_what_the_recorder_announced(
    notify_site: Site, tmp_path: Path, hook: Hook
) -> None:
    """A submitter on another machine can name the targets that the recorder announced.

    Their settings have no secret, and their machine needs no Apprise. Only ``--test`` needs the settings.
    """
    serve(notify_site.queue, make_offer())
    ready(notify_site)
    other = Site(tmp_path / "other", notify_site.settings.redis_url)

    job = int(other.cli("submit", "--mem", "64M", "--on-end", "team", "--", "true").stdout)
    tried = [other.cli("notify", "--test", to, check=False) for to in ("team", "bob@example.org", "nobody")]
    end(notify_site)

    assert [(2, "", 1)] * 3 == [(each.returncode, each.stdout, each.stderr.count("\n")) for each in tried]
    knows = f"the recorder on {notify_site.settings.host} knows the target"
    assert f"{knows} 'team', but this shell's settings, which the test uses, do not: set notify" in tried[0].stderr
    assert f"{knows} 'mail'" in tried[1].stderr
    assert "no target is called 'nobody' here" in tried[2].stderr
    until(lambda: hook.reported(SECRET), what=f"a post\n{notify_site.log()}")
    assert f"job {job} (true) succeeded" in hook.reported(SECRET)[0]["title"]
    other.stop()


HOWTO = Path(__file__).parents[3] / "docs" / "howto" / "notifications.md"


@pytest.mark.parametrize("ending", [0, 3])
def test_a_second_job_runs_a_command_after_any_end(site: Site, tmp_path: Path, ending: int) -> None:
    """The example of the how-to runs a script after any end of a job, and the script finds out what the end was."""
    commands, script = re.findall(r"```sh\n(.*?)```", HOWTO.read_text().partition("## Run a command")[2], re.DOTALL)
    (tmp_path / "train.py").write_text(f"raise SystemExit({ending})\n")
    (tmp_path / "collect.sh").write_text(script)
    (tmp_path / "collect.sh").chmod(0o755)
    config = tmp_path / "config.toml"
    config.write_text(f'redis_url = "{site.environ.pop("GPUQUEUE_REDIS_URL")}"\n')
    site.environ["GPUQUEUE_CONFIG"] = str(config)  # unlike the URL, a job gets this variable
    site.start_recorder()
    site.start_worker()

    subprocess.run(["/bin/sh", "-e", "-c", commands], cwd=tmp_path, env=site.environ, check=True, timeout=60)

    site.until_recorded(2)
    first, *shown = (tmp_path / "results.txt").read_text().splitlines()
    assert f"job 1 ended with exit code {ending}" == first
    assert any(line.startswith("run 1 on ") for line in shown), shown
