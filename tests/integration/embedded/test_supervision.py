"""The embedded store is started again when it died: real servers, real disks."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from bounded import until
from factories import make_spec
from findings import findings
from own_store import OwnStore
from short_host import fill, own_disk

from gpuqueue.doctor.site import Site
from gpuqueue.doctor.store import away, deaths
from gpuqueue.embedded import store as embedded
from gpuqueue.embedded import supervision
from gpuqueue.embedded.store import EmbeddedStore, Reserve
from gpuqueue.embedded.supervision import StoreSupervisor
from gpuqueue.errors import GpuQueueError, StoreUnreachable
from gpuqueue.model.finding import Grade
from gpuqueue.queue.absence import StoreState, StoreTrouble
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.settings.settings import Settings
from gpuqueue.system.process import ProcessIdentity, of_ours_with
from gpuqueue.system.timed_call import CallFailed
from gpuqueue.text.units import MIB


def supervisor_of(store: OwnStore, *, may_end: bool = False) -> StoreSupervisor:
    """Return a supervisor without pauses."""
    return StoreSupervisor(store.settings, lambda _failures: 0.0, may_end=may_end)


def state_of(store: OwnStore) -> StoreState | None:
    """Return the state in the record."""
    trouble = StoreTrouble.read(store.settings)
    return None if trouble is None else trouble.state


def until_state(supervisor: StoreSupervisor, store: OwnStore, state: StoreState) -> StoreTrouble:
    """Poll until there is a new record with *state*, and return it."""
    before = StoreTrouble.read(store.settings)

    def there() -> StoreTrouble | None:
        supervisor.poll()
        trouble = StoreTrouble.read(store.settings)
        return trouble if trouble is not None and trouble != before and trouble.state is state else None

    trouble = until(there, what=f"the state {state.value}")
    assert trouble is not None
    return trouble


def until_state_is(supervisor: StoreSupervisor, state: StoreState) -> None:
    """Poll until the supervisor has *state*."""

    def there() -> bool:
        supervisor.poll()
        return supervisor._state is state

    until(there, what=f"the state {state.value}")


def job_of(store: OwnStore) -> int:
    """Open the queue, submit a job, and return its id."""
    with closing(JobQueue(store.url)) as queue:
        queue.recovery.open(0)
        return queue.requests.submit(make_spec()).id


def has(store: OwnStore, job_id: int) -> bool:
    """Return whether the queue has the job."""
    with closing(JobQueue(store.url)) as queue:
        return queue.jobs.get(job_id) is not None


def starts(store: OwnStore) -> int:
    """Return how often a server was started."""
    return (store.settings.logs_dir / "store.log").read_text(errors="replace").count("is starting")


def damage(store: OwnStore) -> Callable[[], object]:
    """Damage the files of the store, and return what repairs them."""
    (manifest,) = (store.settings.state_dir / "store" / "appendonlydir").glob("*.manifest")
    (log,) = manifest.parent.glob("*.incr.aof")
    whole = log.read_bytes()
    log.write_bytes(b"*no command\r\n" + whole)
    return lambda: log.write_bytes(whole)


def test_a_killed_store_is_started_again_with_its_jobs(own_store: OwnStore) -> None:
    """The first server is the child of another process, the next one of the supervisor, which learns its signal."""
    supervisor = supervisor_of(own_store)
    job = job_of(own_store)
    for words in ("its log has no last words", "was killed by SIGKILL"):
        own_store.kill()
        trouble = until_state(supervisor, own_store, StoreState.SERVING)
        assert has(own_store, job)
        assert words in trouble.why
        assert trouble.away_s is not None


def test_a_store_that_ends_by_itself_says_its_last_words(own_store: OwnStore) -> None:
    """The end of its log is in the record."""
    server = EmbeddedStore(own_store.settings).server()
    assert server is not None
    supervisor = supervisor_of(own_store)
    supervisor.poll()

    server.send(signal.SIGTERM)
    trouble = until_state(supervisor, own_store, StoreState.SERVING)

    assert "ended; the end of its log: " in trouble.why
    assert "bye bye" in trouble.why


def test_a_store_whose_pid_cannot_be_written_is_started_again(
    own_store: OwnStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk can become full between the check for room and that write. The death is no stop on purpose then."""
    job, supervisor = job_of(own_store), supervisor_of(own_store)
    supervisor.poll()
    limits, of = resource.getrlimit(resource.RLIMIT_FSIZE), ProcessIdentity.of

    def without_room(_cls: type[ProcessIdentity], pid: int) -> ProcessIdentity | None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))  # from now on, each write fails
        return of(pid)

    own_store.kill()
    with monkeypatch.context() as patch:
        patch.setattr(ProcessIdentity, "of", classmethod(without_room))
        try:
            until(lambda: supervisor.poll() or resource.getrlimit(resource.RLIMIT_FSIZE) != limits, what="a start")  # type: ignore[func-returns-value]
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    until_state_is(supervisor, StoreState.SERVING)
    assert has(own_store, job)


def test_a_store_that_was_stopped_on_purpose_stays_down(own_store: OwnStore) -> None:
    """A stop is no death, also if the supervisor still runs."""
    supervisor = supervisor_of(own_store)
    supervisor.poll()

    own_store.stop()
    for _ in range(20):
        supervisor.poll()

    assert 1 == starts(own_store)
    assert None is state_of(own_store)


def test_two_supervisors_start_one_store(own_store: OwnStore) -> None:
    """The lock of the directory lets one start a server, and the other one takes it over."""
    both = [supervisor_of(own_store), supervisor_of(own_store)]
    job = job_of(own_store)
    own_store.kill()

    def there() -> bool:
        for each in both:
            each.poll()
        return all(each._state is StoreState.SERVING for each in both) and starts(own_store) > 1

    until(there, what="both supervisors see a store")
    assert has(own_store, job)
    assert 2 == starts(own_store)
    assert 1 == len(of_ours_with(f"unixsocket:{own_store.settings.socket_path}"))


def test_a_damaged_store_is_tried_once_and_taken_over_after_the_repair(own_store: OwnStore) -> None:
    """Its files stay as they are. What `up` starts after the repair is supervised again."""
    supervisor = supervisor_of(own_store)
    job = job_of(own_store)
    own_store.kill()
    repair = damage(own_store)

    trouble = until_state(supervisor, own_store, StoreState.GIVEN_UP)
    tried = starts(own_store)
    for _ in range(20):
        supervisor.poll()
    assert tried == starts(own_store)
    assert "cannot read its files" in trouble.why

    repair()
    own_store.start()
    until_state(supervisor, own_store, StoreState.SERVING)
    assert has(own_store, job)
    own_store.kill()
    until_state(supervisor, own_store, StoreState.SERVING)


def test_a_supervisor_that_may_end_gives_up(own_store: OwnStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """After some tries it raises the reason, for what supervises its process."""
    supervisor = supervisor_of(own_store, may_end=True)
    supervisor.poll()
    monkeypatch.setattr(EmbeddedStore, "_command", lambda _self, _program: ["/bin/sh", "-c", "echo no luck; exit 3"])
    own_store.kill()

    with pytest.raises(
        StoreUnreachable,
        match=r"cannot be started again: the store \(pid .*\) ended with exit code 3; the end of its log: .*no luck",
    ):
        until(supervisor.poll, what="it gives up")

    log = (own_store.settings.logs_dir / "store.log").read_text(errors="replace")
    assert supervision.MOST_TRIES == log.count("no luck")
    assert StoreState.GIVEN_UP is state_of(own_store)


def test_a_supervisor_that_may_end_gives_up_on_damage_at_once(own_store: OwnStore) -> None:
    """More tries would not help."""
    supervisor = supervisor_of(own_store, may_end=True)
    supervisor.poll()
    own_store.kill()
    damage(own_store)

    with pytest.raises(StoreUnreachable, match="cannot read its files"):
        until(supervisor.poll, what="it gives up")
    assert 2 == starts(own_store)


def test_pauses_grow_with_failures_and_not_with_kills(own_store: OwnStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that was killed did not fail."""
    asked: list[int] = []
    supervisor = StoreSupervisor(own_store.settings, lambda failures: asked.append(failures) or 0.0, may_end=False)  # type: ignore[func-returns-value]
    for _ in range(2):
        own_store.kill()
        until_state(supervisor, own_store, StoreState.SERVING)
    assert [0, 0] == asked

    with monkeypatch.context() as patch:
        patch.setattr(EmbeddedStore, "_command", lambda _self, _program: ["/bin/false"])
        own_store.kill()

        def failed_thrice() -> bool:
            supervisor.poll()
            return len(asked) > 5

        until(failed_thrice, what="three failures")
    assert [0, 0, 0, 1, 2, 3] == asked
    until_state(supervisor, own_store, StoreState.SERVING)


def test_a_store_whose_socket_was_deleted_is_restarted(own_store: OwnStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cleanup of /tmp may delete it. Then nobody reaches the server, which lives."""
    monkeypatch.setattr(supervision, "UNREACHABLE_S", 0.0)
    monkeypatch.setattr(supervision, "CHECK_S", 0.0)
    supervisor = supervisor_of(own_store)
    job = job_of(own_store)
    supervisor.poll()

    own_store.settings.socket_path.unlink()
    until_state(supervisor, own_store, StoreState.SERVING)
    assert has(own_store, job)


def test_a_deleted_directory_is_left_to_up(own_store: OwnStore) -> None:
    """The supervisor starts no empty store on its own: `up` restores what can be restored."""
    supervisor = supervisor_of(own_store)
    supervisor.poll()
    own_store.remove_data()
    (pid,) = of_ours_with(f"unixsocket:{own_store.settings.socket_path}")
    os.kill(pid, signal.SIGKILL)
    for _ in range(20):
        supervisor.poll()

    assert not (own_store.settings.state_dir / "store").exists()


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OwnStore]:
    """Return a store with a small reserve on a small disk of its own."""
    monkeypatch.setattr(embedded, "RESERVE_BYTES", 8 * MIB)
    monkeypatch.setattr(supervision, "CHECK_S", 0.0)
    with own_disk(tmp_path / "disk", options="size=48m") as disk:
        store = OwnStore(disk)
        store.start()
        try:
            yield store
        finally:
            store.stop()


def write_until_it_dies(store: OwnStore) -> None:
    """Submit jobs until the store ends, because it cannot write."""
    server = EmbeddedStore(store.settings).server()
    assert server is not None
    with closing(JobQueue(store.url)) as queue, suppress(GpuQueueError):
        while True:
            queue.requests.submit(make_spec(env={"FILL": "x" * 100_000}))
    assert server.wait(30)


def test_a_full_disk_takes_the_reserve_and_then_the_store_waits_for_room(small_disk: OwnStore) -> None:
    """The store comes back on its reserve, then as soon as there is room, and the reserve is made again."""
    store, reserve = small_disk, small_disk.settings.state_dir / "store" / "reserve"
    supervisor = supervisor_of(store)
    job = job_of(store)
    supervisor.poll()
    assert reserve.stat().st_blocks * 512 == 8 * MIB

    filler = fill(store.settings.state_dir)
    write_until_it_dies(store)
    trouble = until_state(supervisor, store, StoreState.SERVING)
    assert "Exiting" in trouble.why
    assert not reserve.exists()
    assert has(store, job)

    second = store.settings.state_dir / "second"
    filler.rename(second)
    fill(store.settings.state_dir)
    write_until_it_dies(store)
    trouble = until_state(supervisor, store, StoreState.NO_ROOM)
    assert "make room there" in trouble.why
    tried = starts(store)
    for _ in range(20):
        supervisor.poll()
    assert tried == starts(store), "it waits, and starts no server that would end at its first write"
    found = away(store.settings, CallFailed("no answer", StoreUnreachable("x")))
    assert Grade.PROBLEM is found.grade

    second.unlink()
    until_state(supervisor, store, StoreState.SERVING)
    assert has(store, job)
    (store.settings.state_dir / ".filler").unlink()

    def made() -> bool:
        supervisor.poll()
        return reserve.exists()

    until(made, what="the reserve")


def test_a_full_disk_is_no_failure_of_the_store(small_disk: OwnStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pauses do not grow, so the store is back at once when there is room again. Here it has no reserve."""
    monkeypatch.setattr(Reserve, "make", lambda _self: False)
    asked: list[int] = []
    job_of(small_disk)
    supervisor = StoreSupervisor(small_disk.settings, lambda failures: asked.append(failures) or 0.0, may_end=False)  # type: ignore[func-returns-value]
    for _ in range(3):
        until_state_is(supervisor, StoreState.SERVING)
        filler = fill(small_disk.settings.state_dir)
        write_until_it_dies(small_disk)
        until_state_is(supervisor, StoreState.NO_ROOM)
        filler.unlink()

    assert [0, 0, 0] == asked


def test_up_says_that_the_disk_is_full(small_disk: OwnStore) -> None:
    """A start on a full disk is refused in one line, and nothing is written."""
    small_disk.kill()
    fill(small_disk.settings.state_dir)

    with pytest.raises(GpuQueueError, match=r"the disk of .* is full: 48M of 48M: make room there"):
        small_disk.start()


def test_a_supervisor_that_may_end_does_not_wait_for_room_for_ever(
    small_disk: OwnStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What supervises its process shows the trouble then."""
    monkeypatch.setattr(supervision, "MOST_WITHOUT_ROOM_S", 0.0)
    supervisor = supervisor_of(small_disk, may_end=True)
    small_disk.kill()
    fill(small_disk.settings.state_dir)

    with pytest.raises(StoreUnreachable, match="is full"):
        until(supervisor.poll, what="it gives up")


def test_no_reserve_is_made_where_it_would_fill_the_disk(tmp_path: Path) -> None:
    """A reserve needs as much room again."""
    with own_disk(tmp_path / "disk", options="size=100m") as disk:
        assert not Reserve(disk).make()
        assert [] == list(disk.iterdir())


def test_the_doctor_says_why_the_store_died(own_store: OwnStore) -> None:
    """The finding is a warning for a day."""
    supervisor = supervisor_of(own_store)
    own_store.kill()
    until_state(supervisor, own_store, StoreState.SERVING)

    (found,) = findings([deaths], Site(own_store.settings))
    assert Grade.WARNING is found.grade
    assert "its log has no last words" in found.seen


@pytest.mark.parametrize("text", ["", "{}", "no json", '{"at": 1, "why": "", "state": "x", "away_s": null}'])
def test_a_damaged_record_is_no_record(tmp_path: Path, text: str) -> None:
    """A command that reads it goes on."""
    settings = Settings.load({"GPUQUEUE_STATE_DIR": str(tmp_path), "GPUQUEUE_CONFIG": os.devnull})
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "trouble").write_text(text)

    assert None is StoreTrouble.read(settings)
