"""The conformance tests of every engine. A new engine makes a ``Bench`` and inherits from ``EngineConformance``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import pytest
from bounded import until

from gpuqueue.engines.engine import AllocationRequest, EngineUnreachable, NotAccepted, Phase, Ref, new_key

if TYPE_CHECKING:
    from pathlib import Path

    from gpuqueue.engines.engine import Engine, Status


class Bench(ABC):
    """A real scheduler with at least two GPUs on one machine, which is this one."""

    #: What to ask for so that the scheduler certainly refuses.
    refused_gpus: int = 64
    #: The variable in which a script finds its GPUs.
    visible: str = "CUDA_VISIBLE_DEVICES"

    @abstractmethod
    def engine(self) -> Engine:
        """Return a new engine, as another process would have it."""

    @abstractmethod
    def unreachable(self) -> Engine:
        """Return an engine whose scheduler does not answer."""

    @abstractmethod
    def reuse_id(self, ref: Ref) -> None:
        """Have the scheduler give the id of *ref* to a job of somebody else; skip the test where it never does."""


def asking(script: str, gpus: int = 1) -> AllocationRequest:
    """Return a request for an allocation that runs *script*."""
    return AllocationRequest(gpus=gpus, duration_s=600.0, script=f"#!/bin/bash\n{script}\n")


def status_of(engine: Engine, ref: Ref) -> Status:
    """Return how *ref* stands."""
    return engine.states([ref])[ref]


def until_phase(engine: Engine, ref: Ref, phase: Phase) -> Status:
    """Wait until *ref* is in *phase*."""

    def there() -> Status | None:
        found = status_of(engine, ref)
        return found if found.phase is phase else None

    found = until(there, what=f"{ref} {phase}", timeout_s=90)
    assert found is not None
    return found


class EngineConformance:
    """What each engine promises. The class that inherits has the fixture ``bench``."""

    def test_an_allocation_runs_its_script_and_ends(self, bench: Bench, tmp_path: Path) -> None:
        """It gets the devices that it asked for, and is over once the script is."""
        engine, seen = bench.engine(), tmp_path / "seen"
        ref = engine.submit(asking(f'echo "${bench.visible}" > {seen}', gpus=2), new_key())

        until_phase(engine, ref, Phase.ENDED)
        assert 2 == len(seen.read_text().strip().split(","))

    def test_a_running_allocation_has_a_node_and_a_time_left(self, bench: Bench) -> None:
        """It has a node, and a time left that is no more than was asked for."""
        engine = bench.engine()
        ref = engine.submit(asking("sleep 600"), new_key())
        found = until_phase(engine, ref, Phase.RUNNING)

        assert found.node
        assert found.left_s is not None
        assert 0 < found.left_s <= 600.0
        engine.cancel(ref, now=True)
        until_phase(engine, ref, Phase.ENDED)

    def test_a_key_makes_one_allocation(self, bench: Bench) -> None:
        """A second submit with the key, as after a lost answer, returns the first allocation."""
        key = new_key()
        first = bench.engine().submit(asking("sleep 600"), key)
        again = bench.engine().submit(asking("sleep 600"), key)

        assert first == again
        bench.engine().cancel(first, now=True)

    def test_another_process_finds_an_allocation_by_its_key(self, bench: Bench) -> None:
        """A process that was killed after its submit left nothing but the key. An unknown key finds nothing."""
        key = new_key()
        ref = bench.engine().submit(asking("sleep 600"), key)

        other = bench.engine().submit(asking("sleep 600"), new_key())
        assert {ref, other} == {*bench.engine().find([key, other.key, new_key()])}
        assert {} == bench.engine().find([new_key()])
        bench.engine().cancel(other, now=True)
        bench.engine().cancel(ref, now=True)

    def test_a_cancelled_script_gets_a_signal_and_ends_by_itself(self, bench: Bench, tmp_path: Path) -> None:
        """Only the script gets SIGTERM: what it has started goes on until the script ends it."""
        engine, seen = bench.engine(), tmp_path / "seen"
        script = f"""
        sleep 600 & child=$!
        trap 'kill -0 $child && echo "signalled, child lives" > {seen}; kill $child; exit 0' TERM
        touch {seen}.began
        wait $child; wait $child"""
        ref = engine.submit(asking(script), new_key())
        until((tmp_path / "seen.began").exists, what="the script")
        engine.cancel(ref)

        until_phase(engine, ref, Phase.ENDED)
        assert "signalled, child lives" == seen.read_text().strip()

    def test_an_allocation_that_waits_is_removed(self, bench: Bench, tmp_path: Path) -> None:
        """Its script never runs."""
        engine, seen = bench.engine(), tmp_path / "seen"
        holders = [engine.submit(asking("sleep 600", gpus=2), new_key()) for _ in range(2)]
        for holder in holders:
            until_phase(engine, holder, Phase.RUNNING)
        ref = engine.submit(asking(f"touch {seen}", gpus=2), new_key())
        assert Phase.WAITING is status_of(engine, ref).phase
        engine.cancel(ref)

        until_phase(engine, ref, Phase.ENDED)
        for holder in holders:
            engine.cancel(holder, now=True)
            until_phase(engine, holder, Phase.ENDED)
        assert not seen.exists()

    def test_cancelling_what_is_over_is_no_error(self, bench: Bench) -> None:
        """Neither is cancelling what never was."""
        engine = bench.engine()
        ref = engine.submit(asking("true"), new_key())
        until_phase(engine, ref, Phase.ENDED)

        engine.cancel(ref)
        engine.cancel(ref, now=True)
        engine.cancel(Ref(new_key(), "99999999"))

    def test_what_the_engine_does_not_know_is_unknown(self, bench: Bench) -> None:
        """Nothing that is merely absent has ended."""
        assert Phase.UNKNOWN is status_of(bench.engine(), Ref(new_key(), "99999999")).phase

    def test_an_id_that_came_again_is_another_allocation(self, bench: Bench) -> None:
        """It is neither shown nor cancelled in the place of ours."""
        engine = bench.engine()
        ref = engine.submit(asking("sleep 600"), new_key())
        stale = Ref(new_key(), ref.id)
        bench.reuse_id(stale)

        assert Phase.UNKNOWN is status_of(engine, stale).phase
        engine.cancel(stale, now=True)
        assert status_of(engine, ref).phase in {Phase.WAITING, Phase.RUNNING}
        engine.cancel(ref, now=True)

    def test_what_is_refused_is_known_not_to_be_there(self, bench: Bench) -> None:
        """The error has the reason, and nothing is found; or the engine takes it, and it is over soon."""
        engine, key = bench.engine(), new_key()
        try:
            ref = engine.submit(asking("true", gpus=bench.refused_gpus), key)
        except NotAccepted:
            assert {} == engine.find([key])
        else:
            until_phase(engine, ref, Phase.ENDED)

    def test_a_scheduler_that_does_not_answer_ends_nothing(self, bench: Bench) -> None:
        """All is unknown, with a reason. Nothing is submitted."""
        engine, ref = bench.unreachable(), Ref(new_key(), "1")

        found = status_of(engine, ref)
        assert Phase.UNKNOWN is found.phase
        assert found.word
        for act in (lambda: engine.find([ref.key]), lambda: engine.submit(asking("true"), ref.key)):
            with pytest.raises(EngineUnreachable):
                act()
        with pytest.raises(EngineUnreachable):
            engine.cancel(ref)
