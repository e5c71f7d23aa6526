from __future__ import annotations

import contextlib
import json
from typing import Any

import odd
import pytest
from factories import make_device, make_spec
from hypothesis import given
from hypothesis import strategies as st

from gpuqueue import codec
from gpuqueue.errors import BadRequest, Unreadable
from gpuqueue.model.device import Activity, DeviceKind, Peak, PeakSource, Timeline
from gpuqueue.model.job import JobSpec
from gpuqueue.model.run import Ending, RunDevice
from gpuqueue.system.exec_limits import MAX_STRING_BYTES
from gpuqueue.text.json_fields import MOST, Fields, loaded
from gpuqueue.text.units import GIB
from workers.measure.meter import Meter
from workers.measure.timeline import Trace

DEVICE = RunDevice(
    uuid="GPU-1",
    lease_bytes=GIB,
    index=1,
    name="Test",
    kind=DeviceKind.GPU,
    total_bytes=24 * GIB,
    peak=Peak(bytes=5, source=PeakSource.NVML_SAMPLED, samples=3, interval_s=1.0, shared=True),
    activity=Activity(first_memory_s=2.5, utilisation_mean=0.5, utilisation_max=1.0, temperature_max_c=71.0),
    timeline=Timeline(step_s=0.2, bytes=(0, None, 5)),
)
SPEC = codec.encode_spec(make_spec(argv=("python", "a.py"), script="a.py", interpreter="python", time_limit_s=5.0))
STARTED = codec.encode_started(log_path="/log", devices=(DEVICE,))
ENDED = codec.encode_ended(ending=Ending.from_status(-9), duration_s=1.5, devices=(DEVICE,), peak_at_once_bytes=5)
METER = Meter(10)
METER.note(5, at_s=0.1, shared=False, device_bytes=7, pids=[3])
#: Reader -> a good payload for it. Each reader takes text, or what came out of JSON.
TEXTS = {codec.decode_spec: SPEC, codec.decode_started: STARTED, codec.decode_ended: ENDED}
PLAINS = {
    codec.device_from_plain: json.dumps(codec.device_to_plain(make_device())),
    codec.run_device_from_plain: json.dumps(codec.run_device_to_plain(DEVICE)),
    codec.peak_from_plain: json.dumps(codec.peak_to_plain(DEVICE.peak)),
    codec.activity_from_plain: json.dumps(codec.activity_to_plain(DEVICE.activity)),
    codec.timeline_from_plain: json.dumps(codec.timeline_to_plain(DEVICE.timeline)),
    codec.ending_from_plain: json.dumps(codec.ending_to_plain(Ending.from_status(1))),
    Meter.from_plain: json.dumps(METER.to_plain()),
    Trace.from_plain: json.dumps(METER.to_plain()["trace"]),
}


def read(reader: Any, text: Any) -> Any:
    """Return what a reader makes of *text*, None if it says that it cannot be read; nothing else may come of it."""
    said = ""
    try:
        return reader(text)
    except Unreadable as error:
        said = str(error)
    assert said
    assert "\n" not in said
    assert len(said) < 300
    return None


@pytest.mark.parametrize("reader", TEXTS, ids=lambda reader: reader.__name__)
@odd.gate
@given(text=st.one_of(odd.texts, odd.values, odd.values.map(json.dumps), st.binary(max_size=9)))
def test_whatever_stands_there_is_a_value_or_unreadable(reader: Any, text: Any) -> None:
    """Any text and any JSON, in the place of a payload."""
    read(reader, text)


@pytest.mark.parametrize("reader", TEXTS, ids=lambda reader: reader.__name__)
@odd.gate
@given(choice=st.data())
def test_a_damaged_payload_is_a_value_or_unreadable(reader: Any, choice: st.DataObject) -> None:
    """Cut off, written over, with a value of another kind; and a value that comes out goes in again."""
    value = read(reader, choice.draw(odd.mutants(TEXTS[reader])))

    if isinstance(value, JobSpec):
        with contextlib.suppress(BadRequest):  # what no process could be given is refused on the way in only
            assert value == codec.decode_spec(codec.encode_spec(value))


@pytest.mark.parametrize("reader", PLAINS, ids=lambda reader: reader.__qualname__)
@odd.gate
@given(choice=st.data())
def test_a_damaged_part_is_a_value_or_unreadable(reader: Any, choice: st.DataObject) -> None:
    """The parts of payloads, which stand in files of their own as well."""
    good = json.loads(PLAINS[reader])
    assert read(reader, good) is not None
    mutant = choice.draw(odd.mutants(PLAINS[reader]))
    try:
        plain = json.loads(mutant)
    except ValueError:
        plain = choice.draw(odd.values)

    read(reader, plain)


def test_depth_is_no_way_in() -> None:
    """Lists in lists in lists: Python's own limit is one of the things that a payload can meet."""
    for text in ("[" * 100_000, '{"a":' * 100_000, "9" * 10_000):
        assert read(codec.decode_spec, text) is None


def test_the_message_says_which_field_and_what_it_is() -> None:
    """Not the whole payload: in it are environments."""
    plain = json.loads(SPEC)

    with pytest.raises(Unreadable, match=r"a job's request cannot be read: 'cwd' is missing"):
        codec.decode_spec(json.dumps({name: value for name, value in plain.items() if name != "cwd"}))
    with pytest.raises(Unreadable, match=r"'mem_bytes' is '6G', not a whole number"):
        codec.decode_spec(json.dumps({**plain, "mem_bytes": "6G"}))
    with pytest.raises(Unreadable, match="'gpus' is a number beyond all bounds"):
        codec.decode_spec(json.dumps({**plain, "gpus": 10**300}))
    with pytest.raises(Unreadable, match=r"^a job's request cannot be read: it is missing$"):
        codec.decode_spec(None)
    with pytest.raises(Unreadable, match="it is no object but a list"):
        codec.decode_spec("[]")


@odd.gate
@given(value=odd.values)
def test_a_field_is_what_it_must_be_or_an_error(value: Any) -> None:
    """Of each kind: the type that was asked for comes out, or nothing does."""
    fields = Fields({"x": value}, "it")
    for take, kinds in (
        (fields.text, str),
        (fields.text_or_none, (str, type(None))),
        (fields.whole, int),
        (fields.whole_or_none, (int, type(None))),
        (fields.number, (int, float)),
        (fields.number_or_none, (int, float, type(None))),
        (fields.flag, bool),
        (fields.each, list),
        (fields.texts, tuple),
        (fields.wholes_or_none, tuple),
    ):
        got = read(take, "x")
        assert got is None or isinstance(got, kinds)
        if take == fields.whole and got is not None:
            assert 0 <= got <= MOST


def test_all_texts_are_texts_or_the_first_that_is_not_is_named() -> None:
    """An environment is read at once."""
    assert {"A": "1", "B": ""} == Fields({"A": "1", "B": ""}, "it").all_texts()
    assert {} == Fields({}, "it").all_texts()
    with pytest.raises(Unreadable, match="'B' is 5, not a text"):
        Fields({"A": "1", "B": 5, "C": None}, "it").all_texts()


def test_what_no_process_could_be_given_is_refused_at_the_door() -> None:
    """At submit, in words, and not on some host hours later."""
    fits = "x" * (MAX_STRING_BYTES - len("A="))
    assert codec.encode_spec(make_spec(argv=("true", "x" * MAX_STRING_BYTES), env={"A": fits}))
    for changes, words in (
        ({"argv": ("true", "x" * (MAX_STRING_BYTES + 1))}, "argument 1 takes 131072 bytes"),
        ({"argv": ("é" * 70_000,)}, "the program's name takes 140000 bytes"),
        ({"env": {"A": fits + "x"}}, "the variable 'A' takes 131072 bytes"),
        ({"env": {"": "x"}}, "'' is no name of a variable"),
        ({"env": {"A=B": "x"}}, "'A=B' is no name of a variable"),
        ({"argv": ("true", "\ud800")}, "argument 1 holds half a character"),
        ({"env": {"A": "\udfff"}}, "the variable 'A' holds half a character"),
        ({"cwd": "/" + "x/" * 2100}, "the working directory's path is longer than 4095 bytes"),
    ):
        with pytest.raises(BadRequest, match=words):
            codec.encode_spec(make_spec(**changes))  # type: ignore[arg-type]


def test_what_older_versions_let_in_still_comes_out() -> None:
    """The limits of the kernel are judged at the door only: a history with such a job in it stays readable."""
    plain = json.loads(SPEC)

    assert {"A=B": ""} == codec.decode_spec(json.dumps({**plain, "env": {"A=B": ""}})).env
    assert 2 * MAX_STRING_BYTES == len(
        codec.decode_spec(json.dumps({**plain, "argv": ["a", "x" * 2 * MAX_STRING_BYTES]})).argv[1]
    )


def test_loaded_reads_text_and_bytes() -> None:
    """Files are read as bytes."""
    assert "a" in loaded(b'{"a":1}', "it")
    assert ["a"] == list(loaded('{"a":1}', "it"))
