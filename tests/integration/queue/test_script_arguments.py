from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import odd
import pytest
import redis
from factories import BOB, make_offer, make_spec, must_claim, serve, submit
from hypothesis import given
from hypothesis import strategies as st
from store_dump import NAMES, Snapshot, digest, dump, faults

from gpuqueue.codec.request import encode_spec
from gpuqueue.model.array import Array
from gpuqueue.model.job_spec import Priority
from gpuqueue.queue import keys
from gpuqueue.queue.connect import connect
from gpuqueue.queue.jobqueue import JobQueue
from gpuqueue.queue.scripts import ACTS, OPENING, Scripts
from gpuqueue.text.units import GIB

#: Odd values, valid for few arguments. Each script gets each of them as each argument.
ODD: tuple[Any, ...] = (
    "",
    " ",
    "0",
    "-1",
    "1.5",
    "1e3",
    "0x10",
    "nan",
    "inf",
    "9007199254740993",
    "9" * 400,
    "1\n2",
    "1\r\n+OK",
    "a:b",
    "a,b",
    "\x00",
    "\x1b]0;x\x07",
    "\udcff",
    "é",
    "%d%s",
    "1:0:1:",
    "{gq}:epoch",
    b"\xff\xfe",
    "x" * 5000,
)
SPEC = encode_spec(make_spec())
#: Digests of the requests of jobs 4 and 1 in the fixture's store.
DIGEST, URGENT_DIGEST = (
    hashlib.sha1(encode_spec(each).encode(), usedforsecurity=False).hexdigest()
    for each in (make_spec(account=BOB), make_spec(priority=Priority.URGENT))
)


@pytest.fixture
def client(queue: JobQueue, store_url: str) -> Iterator[redis.Redis]:
    """Return a connection to a store in which job 1 runs, 2 is cancelling, 3 starts, 4 and 5 wait, 6 is held.

    Job 7 is an array of ten, of which nothing has begun.
    """
    serve(queue, make_offer("GPU-0"), make_offer("GPU-1"))
    for priority in (Priority.URGENT, Priority.URGENT, Priority.URGENT):
        queue.requests.submit(make_spec(priority=priority))
    tokens = [must_claim(queue, nonce=f"abc{n}").token for n in range(3)]
    queue.runs.started(1, tokens[0], lease_s=300, log_path="/l", devices=())
    queue.runs.started(2, tokens[1], lease_s=300, log_path="/l", devices=())
    queue.jobs.cancel(2)
    queue.requests.submit(make_spec(account=BOB))
    queue.requests.submit(make_spec(gpus=2))
    queue.jobs.hold(submit(queue))
    queue.requests.submit(make_spec(array=Array.parse("0-9")))
    connection = connect(store_url)
    assert [] == faults(dump(connection))
    yield connection
    connection.close()


@pytest.fixture
def lost(store_url: str) -> Iterator[redis.Redis]:
    """Return a connection to a store that lost its data and whose rebuild has begun."""
    connection = connect(store_url)
    connection.set(keys.REBUILDING, "e")
    an_array = encode_spec(make_spec(array=Array.parse("0-9")))
    Scripts(connection).run("rebuild_job", "e", 300_000, 7, "queued", "", *WAITS[5:10], an_array, *WAITS[11:])
    yield connection
    connection.close()


@pytest.fixture
def store(request: pytest.FixtureRequest, act: str) -> redis.Redis:
    """Return the store for the script under test."""
    found: redis.Redis = request.getfixturevalue("lost" if act_of(act) in OPENING else "client")
    return found


def act_of(name: str) -> str:
    """Return the script of a case: some scripts have several cases."""
    return name.partition(",")[0]


WAITS: list[Any] = [
    "e",
    300_000,
    6,
    "held",
    "held",
    "ada",
    1,
    GIB,
    f"{GIB}:60:1:",
    1,
    SPEC,
    5,
    2,
    1,
    "after=4:ok:ok begin=5 key=k times=3 on=any retries=1 granted=2 why=retry",
]
RUN: list[Any] = ["3.abc", "nodeA", "w", "GPU-0,GPU-1", 6, 7, "0.5", "{}", 8]
STRAY: list[Any] = [4, "1.abc", 300_000, "nodeA", "w", "GPU-0,GPU-1", 6, "0.5", "{}"]

#: Valid arguments of each script, for the fixture's store.
GOOD: dict[str, list[Any]] = {
    "rebuild_begin": ["f"],
    "rebuild_array": ["e", 7, "3-9", "", 0, 1, 0, 0, 1000],
    "rebuild_array, of what nobody knows": ["e", 7],
    "rebuild_job, of what waits": WAITS,
    "rebuild_job": [*WAITS[:3], "running", "", *WAITS[5:], *RUN],
    "rebuild_preemptions": ["e", 4, 2],
    "rebuild_marks": ["e", 7, 3, 1, "a,b", "text"],
    "rebuild_finish": ["e", 9, 8, 7],
    "adopt, of what waits": [*STRAY, ""],
    "adopt": [99, *STRAY[1:], SPEC, "ada", 1, GIB, f"{GIB}:60:1:", 1, "key=k times=3 on=any"],
    "park": [1, "1.abc0", 300_000],
    "submit": ["ada", 1, GIB, f"{GIB}:0:1:", 1, SPEC, "n", "after=4:ok,5:any begin=9 key=k times=3 on=any", ""],
    "take_ids": [10],
    "claim": ["nodeA", "GPU-1", "w", 300_000, 0, "n1", 1, 1, 5, 3, 6],
    "started": [3, "1.abc2", 300_000, "{}"],
    "heartbeat": [
        "nodeA",
        "GPU-0",
        24 * GIB,
        0,
        0,
        8,
        "",
        "gpu",
        300_000,
        "",
        1,
        "1.abc0",
        1,
        "GPU-0",
        7,
        3,
        "1.abc2",
        0,
    ],
    "name_host": ["nodeA", "abc", 300_000],
    "run_note": [1, "1.abc0", "text"],
    "run_mark": [1, "1.abc0", "idle", 2, 3_600_000, 1, "what", "text"],
    "release_claim": [3, "1.abc2", "text"],
    "release_claim, to exclude the host": [3, "1.abc2", "text", "why", "GPU-0", "cause"],
    "finish": [1, "1.abc0", "failed", "{}", 0, "GPU-0", "why"],
    "finish, to run again": [1, "1.abc0", "queued", "{}", 0, "GPU-0", "why", "retry", 5000],
    "lose_host": ["nodeA", "", 3, 0],
    "lose": [1, "1.abc0", 3, "text", 1, "", "why"],
    "reap": [3, 300_000, 10_000, 100, 5],
    "reserve": [0, 1, "0.0300"],
    "promote": [0, 100],
    "preempt": [0, 60_000, 5, 3, "01", 2, "0"],
    "preempt_devices": [60_000, "GPU-0", "GPU-1"],
    "set_policy": [86_400_000, "ada,bob", "s", "eve", 3_600_000, 1, "ada", 2000],
    "set_limits": ["user:*", "running_gpus=2 queued_jobs=9!", "member:bob", "lab", "members:lab", "bob,eve"],
    "usage": [],
    "why": [5],
    "listing": [5, 1, 99],
    "cancel": [4, "bob"],
    "hold": [4, ""],
    "release": [6, ""],
    "edit_members": [7, "cancel", "2-3", "ada"],
    "edit": [4, DIGEST, 2, GIB, f"{GIB}:0:1:", SPEC, 1, 1, 1, 1, "after=5:ok begin=9 times=3 on=any", "bob"],
    "extend": [1, URGENT_DIGEST, 7_200_000, 7200, SPEC, 3_600_000, "ada"],
    "move_front": [4, 1, "bob"],
    "set_tags": [4, "a,b", "c", 1, "text", "bob", "failed", 1, 0, "bob"],
    "set_tags, of one that is forgotten": [99, "a", "", 0, "", "", "failed", 1, 0, "bob"],
    "settle": [1, 1],
    "drain": ["person", "why", "ada", 2_000_000_000_000, "GPU-0", "GPU-1"],
    "resume": [2, "person", "deaths", "GPU-0", "GPU-1"],
    "calendar_add": ["", "ada,bob", 1, 2_000_000_000_000, "why", "ada", 60_000, "", "GPU-0", "GPU-1"],
    "calendar_cancel": [4, "ada"],
}
#: Arguments that may have any value: no code interprets them before they are shown or read from the history.
ANYTHING = {
    ("rebuild_job", 10),
    ("rebuild_job", 22),
    ("adopt", 8),
    ("adopt", 9),
    ("submit", 5),
    ("edit", 5),
    ("extend", 4),
    ("started", 3),
    ("run_note", 2),
    ("run_mark", 6),
    ("run_mark", 7),
    ("set_tags", 4),
    ("rebuild_marks", 5),
    ("release_claim", 2),
    ("finish", 3),
    ("finish", 6),
    ("lose", 3),
    ("lose", 6),
} | {("drain", 1), ("drain", 2), ("calendar_add", 4)}


def error_of(scripts: Scripts, act: str, words: list[Any]) -> str | None:
    """Run a script and return its error, or None if there is none."""
    try:
        scripts.run(act, *words)
    except redis.ResponseError as error:
        return str(error)
    return None


def test_every_script_is_tried_here() -> None:
    """Each script has valid arguments here, so that its invalid ones are tested."""
    assert set(ACTS) == {act_of(name) for name in GOOD}
    assert NAMES.fullmatch("{gq}:j:12")
    assert not NAMES.fullmatch("{gq}:j:1\n2")


@pytest.mark.full
@pytest.mark.parametrize("act", GOOD)
def test_no_invalid_argument_leaves_the_store_half_written(store: redis.Redis, act: str) -> None:
    # Each argument in turn is odd, missing or one too many. A script that fails does not undo its writes, so after an
    # error every key must be unchanged.
    scripts, snapshot = Scripts(store), Snapshot(store)
    good = GOOD[act]
    vectors = [[*good[:place], strange, *good[place + 1 :]] for place in range(len(good)) for strange in ODD]
    vectors += [good[:count] for count in range(len(good))] + [[*good, "x"], [], [*good * 50]]
    refused, before = 0, digest(store)
    for words in vectors:
        output = error_of(scripts, act_of(act), words)
        if output is None:
            assert [] == faults(dump(store)), words
            snapshot.put_back()  # so that the script can act on the next odd value as well
        else:
            refused += 1
            assert output.startswith("BADARGS"), (words, output)
            assert "\n" not in output
            assert before == digest(store), words
    snapshot.close()
    strict = [place for place in range(len(good)) if (act_of(act), place) not in ANYTHING]
    assert refused >= len(strict) * len(ODD) // 2


@pytest.mark.parametrize("act", GOOD)
def test_valid_arguments_cause_no_error(store: redis.Redis, act: str) -> None:
    # Otherwise the test above could pass because every call is refused.
    before = dump(store)

    Scripts(store).run(act_of(act), *GOOD[act])

    after = dump(store)
    assert [] == faults(after)
    assert (before == after) == (
        act
        in {
            *("rebuild_begin", "preempt", "rebuild_preemptions", "resume", "calendar_cancel"),
            *("reserve", "usage", "why", "listing"),
        }
    )


odd_words = st.one_of(
    st.sampled_from(ODD),
    st.integers(-(2**60), 2**70),
    st.floats(),
    st.text(max_size=8),
    st.binary(max_size=8),
    st.sampled_from(sorted({word for words in GOOD.values() for word in map(str, words)})),
)


@pytest.mark.full
@odd.few_examples
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(sorted(GOOD)), st.lists(st.tuples(st.integers(0, 20), odd_words), max_size=3)),
        max_size=8,
    )
)
def test_no_sequence_of_valid_calls_with_some_odd_values_breaks_the_store(
    client: redis.Redis, queue: JobQueue, steps: list[tuple[str, list[tuple[int, Any]]]]
) -> None:
    # It has only known keys, and its indexes match the jobs.
    scripts = Scripts(client)
    for act, changes in steps:
        words = list(GOOD[act])
        for place, strange in changes if words else ():  # some scripts take no arguments
            words[place % len(words)] = strange
        before = digest(client)
        output = error_of(scripts, act_of(act), words)
        assert output is None or output.startswith("BADARGS"), (act, words, output)
        assert output is None or before == digest(client), (act, words)
    after = dump(client)
    assert [] == faults(after)
    assert all(job.id for job in queue.jobs.live())
