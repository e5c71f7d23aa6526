"""The service sends why a job waits in the sentences that the command line prints, in the reader's time zone."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from service_fixtures import ServedSite, ask, mine

from gpuqueue.cli.output.why_text import why_text
from gpuqueue.codec.wire import to_plain
from gpuqueue.model.job import Job
from gpuqueue.words.values import in_zone, when
from gpuqueue.words.why.sentences import sentences

#: In some months, at 23:30 UTC.
MOMENT = (datetime.now(timezone.utc) + timedelta(days=300)).replace(hour=23, minute=30, second=0, microsecond=0)
DAY, NEXT = MOMENT.strftime("%Y-%m-%d"), (MOMENT + timedelta(days=1)).strftime("%Y-%m-%d")


def waiting(served: ServedSite) -> Job:
    """Return a job that waits for its time, of this account."""
    with served.client("unix") as client:
        return client.jobs.submit(["true"], mem="1M", env={}, begin=MOMENT.isoformat())


def test_the_sentences_are_those_of_the_command_line(served: ServedSite) -> None:
    """The page has no sentences of its own: what the command line says of a job, the answer says too."""
    job = waiting(served)
    status, answer = ask(served, f"/jobs/{job.id}/why", mine(served))
    with served.client("unix") as client:
        found = client.jobs.why(job.id)

    assert 200 == status
    assert to_plain(sentences(found)) == answer["sentences"]
    printed = why_text(found)
    words = answer["sentences"]
    for each in (*words["start"], *words["obstacles"], words["order"], *(it["why_not"] for it in words["devices"])):
        assert each in printed


def test_times_are_those_of_the_reader(served: ServedSite) -> None:
    """A browser says how far its clock is ahead of UTC. A wrong number is refused."""
    job = waiting(served)

    def start(offset: str) -> str:
        return str(ask(served, f"/jobs/{job.id}/why?utc_offset_min={offset}", mine(served))[1]["sentences"]["start"][0])

    assert ["23:30:00", "05:00:00", "14:30:00"] == [start(each).split()[3] for each in ("0", "330", "-540")]
    assert [DAY, NEXT] == [start(each).split()[2] for each in ("0", "330")]
    for wrong in ("1440", "-1440", "x", "1e3"):
        assert 400 == ask(served, f"/jobs/{job.id}/why?utc_offset_min={wrong}", mine(served))[0]


def test_a_zone_holds_for_its_block_alone() -> None:
    """A thread of the service answers readers of many zones."""
    here = when(MOMENT)
    with in_zone(timezone(timedelta(hours=9))):
        assert f"{NEXT} 08:30:00" == when(MOMENT)
        with in_zone(timezone.utc):
            assert f"{DAY} 23:30:00" == when(MOMENT)
        assert f"{NEXT} 08:30:00" == when(MOMENT)
    assert here == when(MOMENT)
