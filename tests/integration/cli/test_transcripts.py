"""Plays the scenes in ``transcripts/``: what people type, what happens beside it, and everything that is printed.

A scene is a text file::

    # What it shows. "# Full: ..." in the first line: only in dev.py test --full.
    % GPU-0 is served              what happens beside the commands, see ACTS
    $ gpuqueue show 77             a command of ada; "bob$" is the prompt of bob, "admin$" of an administrator
    ! gpuqueue: there is no job    a line on standard error
    [3]                            the exit code, if it is not 0

It knows the pipes ``grep WORD`` and ``jq .PATH...``. ``pytest --renew`` writes what is printed now into the scenes:
read the difference before you commit it. What differs from run to run has placeholders.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from factories import make_device, make_offer, serve
from spoken import Spoken, speak
from store_dump import dump, faults

from gpuqueue.history.database import HistoryDatabase
from gpuqueue.model.device import DeviceKind
from gpuqueue.model.environment import is_secret
from gpuqueue.model.job import JobState
from gpuqueue.model.job_spec import Account, Priority
from gpuqueue.model.limits import Limits
from gpuqueue.model.run import Ending
from gpuqueue.queue import job_fields as stored
from gpuqueue.queue import keys
from gpuqueue.queue.connect import connect
from gpuqueue.queue.drains import DrainOrigin
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.lease import Claim, ExternalProcess, Offer
from gpuqueue.queue.requests import new_nonce
from gpuqueue.settings.settings import Settings
from gpuqueue.text.units import parse_bytes, parse_duration
from workers.services.recorder import Recorder

SCENES = sorted(Path(__file__).with_name("transcripts").glob("*.txt"))
CURRENT_ACCOUNT = "gpuqueue.client.connection.current_account"
#: A prompt and what is typed.
TYPED = re.compile(r"(\w*)\$ (.*)")
#: What differs from run to run -> what stands for it.
VARIES = {
    re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?(\+00:00|Z)?"): "YYYY-MM-DD hh:mm:ss",
    re.compile(r"\b\d{13}\b"): "MILLISECONDS",
    re.compile(r"\b(1:59:5\d|2:00:00)\b"): "1:59:59",
    re.compile(r"(?<![\d:'])(\d?\d(\.\d)?s\b|\d?\d:\d\d(?![\d:,']))"): "0.0s",
}


class Scene:
    """A site with a store and a history, whose workers and recorder do what the lines with ``%`` say."""

    def __init__(self, queue: JobQueue, place: Path) -> None:
        self.queue, self._place = queue, place
        self.is_forged = False  # whether a line has written into the store what its scripts would not
        self._offers: dict[str, Offer] = {}
        self._runs: dict[str, Claim] = {}
        queue.rules.set_policy(half_life_s=604_800, urgent=None, shares={}, admins="admin", extend_s=86_400)

    def type(self, who: str, line: str) -> list[str]:
        """Run a command and return the lines that it prints."""
        for offer in self._offers.values():
            self.queue.devices.heartbeat(offer, [], lease_s=300)
        line, *filters = line.split(" | ")
        words = shlex.split(line)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(CURRENT_ACCOUNT, lambda host: Account(name=who or "ada", uid=1000, host=host))
            while "=" in words[0]:
                patch.setenv(*words.pop(0).split("=", 1))
            return list(self._shown(speak(words[1:]), filters))

    def _shown(self, printed: Spoken, filters: list[str]) -> Iterator[str]:
        out = printed.stdout.decode()
        for name, *wanted in map(shlex.split, filters):
            if name == "jq":
                out = "\n".join(json.dumps(picked(json.loads(out), path), ensure_ascii=False) for path in wanted)
            else:
                out = "\n".join(line for line in out.splitlines() if wanted[0] in line)
        yield from map(self._steady, out.splitlines())
        yield from (f"! {self._steady(line)}" for line in printed.stderr.splitlines())
        if printed.code:
            yield f"[{printed.code}]"

    def _steady(self, line: str) -> str:
        line = line.replace(str(self._place), "/home/ada").rstrip()
        for pattern, placeholder in VARIES.items():
            line = pattern.sub(placeholder, line)
        return line

    def serve(self, uuid: str, words: str) -> None:
        """Announce a device of 24 GiB; *words* are further properties, such as ``external=3G by="eve notebook"``."""
        given: dict[str, Any] = {name: value for name, _, value in (w.partition("=") for w in shlex.split(words))}
        limits = {"yes": True, "no": False, None: None}[given.pop("limits", None)]
        user, _, command = given.pop("by", "").partition(" ")
        sizes = {f"{name}_bytes": parse_bytes(given.pop(name)) for name in ("headroom", "external") if name in given}
        if user:
            size = sizes["external_bytes"]
            process = ExternalProcess(pid=7, held_bytes=size, counted_bytes=size, user=user, command=command)
            given["external_processes"] = (process,)
        kind = DeviceKind(given.pop("kind", "gpu"))
        device = make_device(uuid, index=int(uuid.rpartition("-")[2]), kind=kind)
        self._offers[uuid] = make_offer(uuid, device=device, **sizes, **given)
        serve(self.queue, self._offers[uuid], limits_jobs=limits)

    def claim(self, uuid: str, *, starts: bool = False, is_there: bool = True) -> None:
        """Let the worker of a device claim a job if one is there, and start it."""
        found = self.queue.runs.claim(self._offers[uuid], worker=f"worker-{uuid}", lease_s=300, nonce=new_nonce())
        assert is_there == (found is not None)
        if found is None:
            return
        self._runs[found.label] = found
        if starts:
            assert self.queue.runs.started(found.job_id, found.token, lease_s=300, log_path="/log", devices=())

    def end(self, name: str, status: str, after: str | None = None) -> None:
        """End a run with an exit code, or by a signal after a cancel."""
        run, code = self._runs.pop(name), int(status)
        state = JobState.CANCELLED if code < 0 else JobState.FAILED if code else JobState.SUCCEEDED
        duration_s = parse_duration(after) if after else 1.0
        ending = Ending.from_status(code)
        self.queue.runs.finish(run.job_id, run.token, state=state, ending=ending, duration_s=duration_s, devices=())

    def refuse(self, uuid: str, why: str) -> None:
        """Let the worker of a device claim a job, and say that its host cannot start it."""
        found = self.queue.runs.claim(self._offers[uuid], worker=f"worker-{uuid}", lease_s=300, nonce=new_nonce())
        assert found is not None
        self.queue.runs.exclude_host(found.job_id, found.token, why)

    def lose(self, name: str) -> None:
        """Let a run be lost, once too often."""
        run = self._runs.pop(name)
        self.queue.runs.lose(run.job_id, run.token, loss_limit=1, detail="gone")

    def record(self) -> None:
        """Let the recorder write all that has happened into the history."""
        settings = Settings.load()
        with closing(HistoryDatabase(settings.database_url)) as database:
            recorder = Recorder(settings, self.queue, database)
            while recorder.record(0):
                pass

    def preempt(self, by: str, cannot: str | None, these: str) -> None:
        """Let jobs of a priority preempt those of others, if they can."""
        rule = {Priority[by.upper()]: [Priority[each.upper()] for each in these.split()]}
        assert bool(self.queue.maintenance.preempt(rule, after_s=0, grace_s=600)) is not bool(cannot)

    def limit(self, users: str, pools: str) -> None:
        """Set the limits of users and of pools."""
        self.queue.rules.set_limits(Limits.parse(users, pools, {"lab": ("ada", "bob")}))

    def write(self, key: str, field: str, value: str | int) -> None:
        """Write what would take long, or a fault, into the store."""
        self.is_forged = True
        with closing(connect(self.queue.url)) as store:
            store.hset(key, field, str(value))

    def make(self, name: str, mode: int, text: str | None) -> None:
        """Make a file in the directory of the user, with a text that is written as in Python."""
        (self._place / name).touch(mode=mode)
        (self._place / name).write_bytes(codecs.decode(text or "", "unicode_escape").encode())

    def promote(self, job_id: str) -> None:
        """Let a job have waited for so long that its priority rises."""
        self.write(keys.job(int(job_id)), stored.SUBMITTED_MS, self.queue.now_ms() - 90_000)
        self.queue.maintenance.promote(after_s=60)


#: What may happen beside the commands.
ACTS: dict[str, Callable[..., Any]] = {
    r"(\S+) is served(.*)": Scene.serve,
    r"(\S+) claims a job": Scene.claim,
    r"(\S+) starts a job": lambda scene, uuid: scene.claim(uuid, starts=True),
    r"(\S+) cannot start a job: (.*)": Scene.refuse,
    r"(\S+) finds no job": lambda scene, uuid: scene.claim(uuid, is_there=False),
    r"job (\S+) ends with (-?\d+)(?: after (\S+))?": Scene.end,
    r"job (\S+) is lost": Scene.lose,
    r"the history is written": Scene.record,
    r"devices are reserved for the job that waits longest": lambda s: s.queue.maintenance.reserve(after_s=0, most=1),
    r"(\w+) jobs (cannot )?preempt (.*) ones": Scene.preempt,
    r"the limits are '(.*)', and of pools '(.*)'": Scene.limit,
    r"job (\d+) was promoted": Scene.promote,
    r"job (\d+) was preempted (\d+) times": lambda s, job, n: s.write(keys.job(int(job)), stored.PREEMPTIONS, n),
    r"job (\d+) may run again now": lambda s, job: s.write(keys.job(int(job)), stored.NOT_BEFORE_MS, s.queue.now_ms()),
    r"(\S+) goes down with its machine": lambda s, uuid: s.queue.devices.drain(
        [uuid], origin=DrainOrigin.DOWN, why="going down", by="admin"
    ),
    r"(\S+) is reserved for job (\d+)": lambda s, uuid, job: s.write(keys.RESERVED, uuid, f"{job}:1"),
    r"(\S+) is a (program|file)(?: with '(.*)')?": lambda s, name, kind, text: s.make(
        name, 0o755 if kind == "program" else 0o644, text
    ),
    r"the store was rebuilt": lambda s: s.write(keys.META, "claims", s.queue.now_ms() + 60_000),
    r"reserved devices were idle for (\d+) s": lambda s, n: s.write(keys.META, "reserved_idle_ms", int(n) * 1000),
}


def picked(value: Any, path: str) -> Any:
    """Return what a path such as ``.jobs[0].spec`` or ``.jobs[].id`` selects."""
    for step in re.findall(r"[\w-]+|\[\]", path):
        if step == "[]":
            return [picked(each, path.partition("[]")[2]) for each in value]
        value = value and value[int(step) if isinstance(value, list) else step]
    return value


def played(scene: Scene, text: str) -> str:
    """Return the text of a scene with what its commands print now."""
    lines: list[str] = []
    for line in text.splitlines():
        typed = TYPED.fullmatch(line)
        if typed is None and not line.startswith(("# ", "% ")):
            continue  # a line of the output
        if line.startswith("# ") and lines and not lines[-1].startswith("# "):
            lines.append("")
        lines.append(line)
        if typed is not None:
            lines += scene.type(*typed.groups())
        elif line.startswith("% "):
            ((act, found),) = [(act, found) for words, act in ACTS.items() if (found := re.fullmatch(words, line[2:]))]
            act(scene, *found.groups())
    return "\n".join([*lines, ""])


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(each, id=each.stem, marks=[pytest.mark.full] if each.read_text().startswith("# Full: ") else [])
        for each in SCENES
    ],
)
def test_a_scene_goes_as_it_is_written(
    path: Path, queue: JobQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Each command prints what its transcript says, and ends with its exit code. The store is consistent afterwards."""
    shutil.copy(request.getfixturevalue("migrated_sqlite"), tmp_path / "history.db")
    monkeypatch.setenv("GPUQUEUE_REDIS_URL", queue.url)
    monkeypatch.setenv("GPUQUEUE_DATABASE_URL", f"sqlite:///{tmp_path / 'history.db'}")
    monkeypatch.setenv("GPUQUEUE_HOST", "nodeA")
    for name in filter(is_secret, [*os.environ]):  # a retry would name them
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    text, scene = path.read_text(), Scene(queue, tmp_path)

    now = played(scene, text)

    with closing(connect(queue.url)) as store:
        assert scene.is_forged or [] == faults(dump(store))
    if request.config.getoption("--renew") and columns_aside(now) != columns_aside(text):
        path.write_text(now)
    else:
        assert columns_aside(text) == columns_aside(now)


def columns_aside(text: str) -> str:
    """Return the text with two spaces between columns, whose widths differ with what they hold."""
    return re.sub(r"(?<=\S) {2,}", "  ", text)
