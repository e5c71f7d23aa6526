from __future__ import annotations

import contextlib
import inspect
import json
import os
import unicodedata
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import odd
import pytest
from factories import make_spec
from hypothesis import given
from hypothesis import strategies as st

from gpuqueue.client import Client
from gpuqueue.client.history import History
from gpuqueue.errors import BadRequest, GpuQueueError, HistoryUnreachable, JobNotFound, StoreUnreachable
from gpuqueue.model import job_ref, times, validation
from gpuqueue.model.history_query import Sort
from gpuqueue.model.job import JobState
from gpuqueue.model.job_spec import JobSpec
from gpuqueue.queue.connect import connect
from gpuqueue.settings.parsers import READERS
from gpuqueue.settings.settings import Settings
from gpuqueue.settings.sources import PREFIX
from gpuqueue.system.environment import CHANGED, travelling
from gpuqueue.text.sanitize import MOST, brief, in_one_line, plain
from gpuqueue.text.units import GIB, MIB, format_apart, format_bytes, format_duration, parse_bytes, parse_duration

HERE = {"GPUQUEUE_CONFIG": os.devnull, "GPUQUEUE_STATE_DIR": "/nonexistent/state"}


#: The arguments of a submit.
ARGUMENTS = [
    "command",
    "args",
    "mem",
    "gpus",
    "device",
    "time_limit",
    "signal",
    "name",
    "env",
    "cwd",
    "priority",
    "pool",
    "requeue",
    "cap",
    "python",
]


class Unprintable:
    """A value whose repr fails."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


#: Values that a program may pass by mistake.
mistakes: st.SearchStrategy[Any] = st.one_of(
    odd.values, st.binary(max_size=4), st.sampled_from([object, Unprintable(), 10**5000, {1: 2}, {"a"}, 1j, b"", ()])
)


def one_line(act: Any) -> Any:
    """Return the result of *act*, or None if it raises `GpuQueueError`.

    The error must have a message that is harmless on a terminal.
    """
    output = None
    try:
        return act()
    except GpuQueueError as error:
        output = str(error)
    assert output
    assert harmless(in_one_line(output))
    return None


def harmless(text: str) -> bool:
    """Return whether every character of *text* is printable or a space."""
    return all(char.isprintable() or unicodedata.category(char) == "Zs" for char in text)


@odd.few_examples
@given(field=st.sampled_from(sorted(JobSpec.__dataclass_fields__)), value=mistakes)
def test_a_spec_takes_what_it_means_or_says_what_is_wrong(field: str, value: Any) -> None:
    """Each field takes any value or refuses it. An accepted spec can be shown, matched and hashed into a shape."""
    spec = one_line(lambda: make_spec(**{field: value}))
    if spec is not None:
        assert str(spec.shape)
        assert isinstance(spec.command, str)
        repr(spec)


@odd.few_examples
@given(
    argument=st.sampled_from(ARGUMENTS),
    value=mistakes,
)
def test_a_submit_says_which_argument_is_wrong(argument: str, value: Any) -> None:
    """An invalid argument of a submit raises `BadRequest`. A valid one fails at the missing store."""
    client = Client(Settings.load({**HERE, "GPUQUEUE_REDIS_URL": "unix:///nonexistent/store.sock"}))
    words: dict[str, Any] = {"command": ["true"], "mem": "1G", "cwd": "/", argument: value}
    with pytest.raises((BadRequest, StoreUnreachable)):
        client.jobs.submit(words.pop("command"), **words)


@pytest.mark.parametrize(
    ("words", "output"),
    [
        ({"command": None}, "command must be a list of words, not None"),
        ({"command": ["python", 5]}, "command must be a list of words, and 5 is no text"),
        ({"command": b"train.py"}, "command must be a list of words, not b'train.py'"),
        ({"args": "--lr 1"}, r"args must be a list of words, not the text '--lr 1': write \['--lr 1'\]"),
        ({"cwd": 5}, "cwd must be a path, not 5"),
        ({"cwd": 0}, "cwd must be a path, not 0"),
        ({"cwd": "/a\0b"}, "cwd must be a path"),
        ({"env": [("A", "1")]}, "env must be a mapping of names to values"),
        ({"env": {"A": 1}}, "every variable of the environment, must be text"),
        ({"env": {"": "1"}}, "'' is no name of a variable"),
        ({"env": {"A=B": "1"}}, "'A=B' is no name of a variable"),
        ({"name": 0}, "name must be text, not 0"),
        ({"name": []}, r"name must be text, not \[\]"),
        ({"time_limit": True}, "time_limit must be a number of seconds, not True"),
        ({"time_limit": 10**400}, "time limit"),
        ({"time_limit": [1]}, r"time_limit must be a number of seconds, not \[1\]"),
        ({"python": 5}, "python must be a path, not 5"),
        ({"requeue": "no"}, "requeue must be true or false, not 'no'"),
        ({"mem": 1.5}, "mem must be a whole number, not 1.5"),
        ({"mem": 10**5000}, "a job cannot ask for something of type int bytes of memory"),
    ],
)
def test_what_raised_a_type_error_is_a_bad_request(words: dict[str, Any], output: str) -> None:
    """Each of these values raises `BadRequest`.

    Regression: each raised `TypeError` or `ValueError`, or had another meaning.
    """
    client = Client(Settings.load({**HERE, "GPUQUEUE_REDIS_URL": "unix:///nonexistent/store.sock"}))
    given = {"command": ["true"], "mem": "1G", "cwd": "/", **words}
    with pytest.raises(BadRequest, match=output):
        client.jobs.submit(given.pop("command"), **given)


@odd.few_examples
@given(value=mistakes)
def test_an_id_is_a_number_or_a_bad_request(value: Any) -> None:
    """An id is a number or `BadRequest`. Regression: `get("1")` found job 1 and then failed in a comparison."""
    client = Client(Settings.load({**HERE, "GPUQUEUE_REDIS_URL": "unix:///nonexistent/store.sock"}))
    for method in (
        client.jobs.get,
        client.jobs.show,
        client.jobs.cancel,
        client.jobs.hold,
        client.jobs.release,
        client.logs.path,
        client.jobs.events,
    ):
        with pytest.raises((BadRequest, JobNotFound, StoreUnreachable, HistoryUnreachable)):
            method(value)
    for generator in (client.jobs.watch, client.logs.follow):
        with pytest.raises((BadRequest, JobNotFound, StoreUnreachable)):
            next(generator(value))
    for timeout_s in ("5", float("nan"), [1], True):
        with pytest.raises(BadRequest, match="timeout_s must be a number of seconds"):
            client.jobs.wait(1, timeout_s=timeout_s)  # type: ignore[arg-type]


#: The filters of a history query.
QUESTIONS = sorted(inspect.signature(History.search).parameters.keys() - {"self", "reverse"})


@odd.few_examples
@given(
    argument=st.sampled_from(QUESTIONS),
    value=st.one_of(mistakes, st.datetimes(), st.datetimes(timezones=st.just(timezone.utc))),
)
def test_a_question_to_the_history_is_asked_or_refused(argument: str, value: Any) -> None:
    """An invalid filter is refused before the database sees it.

    Examples are a naive time, an unknown state and a lone surrogate.
    """
    settings = Settings.load({**HERE, "GPUQUEUE_DATABASE_URL": "sqlite:////dev/null/history.db"})
    with Client(settings) as client, pytest.raises((BadRequest, JobNotFound, HistoryUnreachable)):
        client.history.search(**{argument: value})


def test_what_is_usable_passes_the_checks() -> None:
    """Valid values are accepted, so the tests above do not pass because everything is refused."""
    now = datetime.now(timezone.utc)
    assert (7, 0, None, "ada") == (
        job_ref.job_id(7),
        validation.count("limit", 0),
        validation.text_or_none("user", None),
        validation.text_or_none("user", "ada"),
    )
    assert (JobState.FAILED,) == validation.words_of("states", [JobState.FAILED], JobState)
    assert (Sort.PEAK, Sort.PEAK) == (validation.word("sort", "peak", Sort), validation.word("sort", Sort.PEAK, Sort))
    assert (2**30, 5, None) == tuple(validation.size_or_none("min_peak", each) for each in ("1G", 5, None))
    assert (60.0, 5.0, None) == tuple(validation.duration_or_none("min_duration", each) for each in ("1m", 5.0, None))
    assert (now, None) == (times.moment("since", now), times.moment("since", None))
    assert (5.0, 7200.0, None) == (validation.time_limit(5.0), validation.time_limit("2h"), validation.time_limit(None))
    assert (("a", "b"), {}, {"A": "1"}) == (
        validation.words("args", ["a", "b"]),
        validation.environment(None),
        validation.environment({"A": "1"}),
    )
    assert ("/a", "/b", None) == (
        validation.path_or_none("cwd", "/a"),
        validation.path_or_none("cwd", Path("/b")),
        validation.path_or_none("cwd", None),
    )


@odd.few_examples
@given(text=st.one_of(odd.texts, st.from_regex(r"[0-9.:-]{0,12}[a-zA-Z]{0,4}", fullmatch=True)))
def test_a_size_and_a_duration_are_in_bounds_or_refused(text: str) -> None:
    """A size or duration is within its bounds or refused. Its printed form can be parsed again."""
    size_bytes, duration_s = one_line(lambda: parse_bytes(text)), one_line(lambda: parse_duration(text))
    assert size_bytes is None or 0 < size_bytes <= 2**50
    assert duration_s is None or 0 < duration_s <= 10 * 365 * 86400
    if size_bytes is not None:
        assert parse_bytes(f"{format_bytes(size_bytes)}".replace("B", "K"))
    if duration_s is not None:
        assert format_duration(duration_s)


@pytest.mark.parametrize(
    "text", ["9" * 400 + "G", "9" * 5000, "9" * 5000 + "G", "٣G", "³G", "1" * 5000 + "s", "9" * 5000 + ":00:00", "٣s"]
)
def test_digits_without_end_or_of_another_script_are_no_number(text: str) -> None:
    """Very long numbers and digits of other scripts are refused.

    Python's int raises its own error for some, and float makes others infinite.
    """
    for parse in (parse_bytes, parse_duration):
        with pytest.raises(BadRequest, match="is not a") as caught:
            parse(text)
        assert len(str(caught.value)) < 200


def test_two_different_sizes_are_printed_differently() -> None:
    """Two different sizes are printed differently, so that an error does not show 7.5G twice."""
    assert ("80G", "24G") == format_apart(80 * GIB, 24 * GIB)
    assert ("7.5G", "7.46G") == format_apart(15 * GIB // 2, 15 * GIB // 2 - 40 * MIB)
    assert ("7.5G", "7.499G") == format_apart(15 * GIB // 2, 15 * GIB // 2 - MIB)
    assert (f"{2 * GIB}B", f"{2 * GIB - 1}B") == format_apart(2 * GIB, 2 * GIB - 1)
    assert ("512M", "0B") == format_apart(512 * MIB, 0)
    assert ("1G", "1G") == format_apart(GIB, GIB)


@odd.few_examples
@given(sizes=st.tuples(st.integers(0, 2**50), st.integers(0, 2**50)))
def test_any_two_different_sizes_are_printed_differently(sizes: tuple[int, int]) -> None:
    """Two sizes have the same text exactly if they are equal."""
    one, other = format_apart(*sizes)
    assert (one == other) == (sizes[0] == sizes[1])


@odd.few_examples
@given(name=st.sampled_from(sorted(READERS)), text=odd.texts)
def test_a_setting_is_taken_or_named_with_its_origin(name: str, text: str) -> None:
    """A setting is accepted, or refused with its origin. A wrong address may be reported at its first use."""
    variable = PREFIX + name.removesuffix("_bytes").removesuffix("_s").upper()
    output = None
    try:
        settings = Settings.load({**HERE, variable: text})
    except BadRequest as error:
        output = str(error)
    if output is not None:
        assert variable in output
        return
    with contextlib.suppress(StoreUnreachable):
        if name == "redis_url":
            Client(settings).queue.epoch()
    with contextlib.suppress(HistoryUnreachable):
        if name == "database_url":
            with Client(settings) as client:
                client.database.max_job_id()


@pytest.mark.parametrize(
    ("content", "output"),
    [
        (b"\xff\xfe\x00", "it is no text in UTF-8"),
        (b"lease = ", "is not TOML"),
        (b"slots = " + b"9" * 5000, "is not TOML"),
        (b"slots = 0x" + b"f" * 5000, r"setting slots \(file"),
        (b"lease = " + b"[" * 100_000, "is not TOML"),
        (b"poll = [1]", r"setting poll \(file"),
        (b"[poll]\na = 1", r"setting poll \(file"),
        (b"poll = 2026-11-01", r"setting poll \(file"),
        (b"'\\u001b]0;x' = 1", "is no setting"),
        (b"headrom = '3G'", "'headrom' is no setting: did you mean headroom?"),
        (b"#" * 2_000_000, "is larger than 1048576 bytes"),
    ],
)
def test_a_settings_file_that_makes_no_sense_is_one_line(tmp_path: Path, content: bytes, output: str) -> None:
    """A settings file that is broken, binary, huge or has values of the wrong type gives a one-line error."""
    file = tmp_path / "config.toml"
    file.write_bytes(content)

    with pytest.raises(BadRequest, match=output):
        Settings.load({**HERE, "GPUQUEUE_CONFIG": str(file)})


@pytest.mark.parametrize("path", ["/dev/zero", "/nonexistent", "/", "/proc/self/mem", "\0"])
def test_a_settings_file_that_is_none_is_one_line(path: str) -> None:
    """A path that is no regular file gives a one-line error. An endless file is not read to its end."""
    with pytest.raises(BadRequest, match="settings file"):
        Settings.load({**HERE, "GPUQUEUE_CONFIG": path})


def test_a_machine_with_a_strange_name_needs_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """An invalid host name must be overridden, because it becomes part of keys in the store."""
    monkeypatch.setattr("os.uname", lambda: SimpleNamespace(nodename="my host:1"))

    with pytest.raises(BadRequest, match="Set GPUQUEUE_HOST"):
        Settings.load(HERE)
    assert "nodeA" == Settings.load({**HERE, "GPUQUEUE_HOST": "nodeA"}).host


@pytest.mark.parametrize(
    "url",
    [
        "",
        "x",
        "redis://[::1",
        "redis://h:abc",
        "redis://h?foo=1",
        "redis://h?retry=5",
        "redis://h?db=x",
        "redis://a..b",
        "redis://\udcff",
        "redis://" + "a" * 300,
    ],
)
def test_an_invalid_address_of_a_store_is_refused_at_once(url: str) -> None:
    """An invalid store address is refused at once. It does not fail in the redis library at the first command."""
    with pytest.raises(StoreUnreachable, match="GPUQUEUE_REDIS_URL is no usable address"):
        connect(url)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "x",
        "sqlite://host/p",
        "sqlite:///\0",
        "sqlite:///x?timeout=abc",
        "sqlite:////\udcff",
        "postgresql://h:abc/",
        "postgresql://[::1",
        "postgresql+nodriver://h/x",
        "mysql://h/x",
    ],
)
def test_an_invalid_address_of_a_history_is_refused_at_once(url: str) -> None:
    """An invalid history address raises `HistoryUnreachable`."""
    settings = Settings.load({**HERE, "GPUQUEUE_DATABASE_URL": url})
    with Client(settings) as client, pytest.raises(HistoryUnreachable):
        client.database.max_job_id()


@odd.few_examples
@given(text=st.one_of(odd.texts, odd.values.map(json.dumps)))
def test_what_the_worker_changed_is_only_what_it_says_it_changed(text: str) -> None:
    """Invalid content of the variable with the worker's changes does not damage the environment."""
    environ = {"A": "1", CHANGED: text, "": "of an entry that begins with ="}

    assert {"A": "1"} == {name: value for name, value in travelling(environ).items() if name == "A"}
    assert "" not in travelling(environ)


@odd.few_examples
@given(text=odd.texts)
def test_plain_text_obeys_nothing(text: str) -> None:
    """`plain` replaces controls, direction marks, line ends and invisible characters. It keeps all other text."""
    shown = plain(text)

    assert harmless(shown)
    assert len(shown) == len(text)
    assert harmless(in_one_line(text))
    assert shown == plain(shown)
    if text.isprintable():
        assert text == shown


def test_a_message_keeps_its_beginning_and_its_remedy() -> None:
    """A long message is cut in the middle, and keeps its beginning and its remedy."""
    line = in_one_line("what is wrong: " + "x" * 2**20 + ": what to do")

    assert len(line) <= MOST + 3
    assert line.startswith("what is wrong: xxx")
    assert line.endswith("xxx: what to do")
    assert "something of type Unprintable" == brief(Unprintable())
