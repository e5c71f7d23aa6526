from __future__ import annotations

import contextlib
import json
from functools import partial
from typing import Any

import odd
import pytest
from factories import make_device, make_spec
from hypothesis import given
from hypothesis import strategies as st

from gpuqueue.codec import request as codec
from gpuqueue.codec import wire
from gpuqueue.codec.request import MAX_STRING_BYTES
from gpuqueue.errors import BadRequest, Unreadable
from gpuqueue.model.device import Activity, Device, DeviceKind, Peak, PeakSource, Timeline
from gpuqueue.model.job_spec import JobSpec
from gpuqueue.model.run import Ending, RunDevice
from gpuqueue.text.json_fields import MAX_INTEGER, Fields, loaded
from gpuqueue.text.units import GIB
from workers.measure.meter import Meter, Trace

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
METER = Meter(trace=Trace(10))
METER.note(5, at_s=0.1, shared=False, device_bytes=7, pids=[3])
#: Each reader with a valid payload. Readers in TEXTS take text, those in READERS take parsed JSON.
TEXTS = {codec.decode_spec: SPEC, codec.decode_started: STARTED, codec.decode_ended: ENDED}
PLAINS = {
    kind: json.dumps(wire.to_stored(value))
    for kind, value in (
        (Device, make_device()),
        (RunDevice, DEVICE),
        (Peak, DEVICE.peak),
        (Activity, DEVICE.activity),
        (Timeline, DEVICE.timeline),
        (Ending, Ending.from_status(1)),
    )
}
READERS = {
    **{partial(wire.from_plain, kind): text for kind, text in PLAINS.items()},
    Meter.adopted: json.dumps(wire.to_stored(METER)),
}


def read(reader: Any, text: Any) -> Any:
    """Return the reader's result for *text*, or None if it raises `Unreadable`. Any other exception fails the test."""
    output = ""
    try:
        return reader(text)
    except Unreadable as error:
        output = str(error)
    assert output
    assert "\n" not in output
    assert len(output) < 300
    return None


@pytest.mark.parametrize("reader", TEXTS, ids=lambda reader: reader.__name__)
@odd.few_examples
@given(text=st.one_of(odd.texts, odd.values, odd.values.map(json.dumps), st.binary(max_size=9)))
def test_whatever_stands_there_is_a_value_or_unreadable(reader: Any, text: Any) -> None:
    """Any text and any JSON in place of a payload gives a value or `Unreadable`."""
    read(reader, text)


@pytest.mark.parametrize("reader", TEXTS, ids=lambda reader: reader.__name__)
@odd.few_examples
@given(choice=st.data())
def test_a_damaged_payload_is_a_value_or_unreadable(reader: Any, choice: st.DataObject) -> None:
    """A payload that is truncated, overwritten or has a value of another type gives a value or `Unreadable`.

    A spec that is read can be encoded again.
    """
    value = read(reader, choice.draw(odd.mutants(TEXTS[reader])))

    if isinstance(value, JobSpec):
        with contextlib.suppress(BadRequest):  # the kernel's limits apply on encoding only
            assert value == codec.decode_spec(codec.encode_spec(value))


@pytest.mark.parametrize("reader", READERS, ids=[*(kind.__name__ for kind in PLAINS), "Meter"])
@odd.few_examples
@given(choice=st.data())
def test_a_damaged_part_is_a_value_or_unreadable(reader: Any, choice: st.DataObject) -> None:
    """A damaged part of a payload gives a value or `Unreadable`. Parts are also stored in files of their own."""
    good = json.loads(READERS[reader])
    assert read(reader, good) is not None
    mutant = choice.draw(odd.mutants(READERS[reader]))
    try:
        plain = json.loads(mutant)
    except ValueError:
        plain = choice.draw(odd.values)

    read(reader, plain)


def test_depth_is_no_way_in() -> None:
    """Deep nesting and huge numbers are `Unreadable`, although they exceed limits of Python itself."""
    for text in ("[" * 100_000, '{"a":' * 100_000, "9" * 10_000):
        assert read(codec.decode_spec, text) is None


def test_the_message_says_which_field_and_what_it_is() -> None:
    """The message names the field and its value.

    It does not contain the whole payload, because a payload contains environments.
    """
    plain = json.loads(SPEC)

    with pytest.raises(Unreadable, match=r"a job's request cannot be read: the field cwd is missing"):
        codec.decode_spec(json.dumps({name: value for name, value in plain.items() if name != "cwd"}))
    with pytest.raises(Unreadable, match=r"mem_bytes must be a whole number from 0 up, not '6G'"):
        codec.decode_spec(json.dumps({**plain, "mem_bytes": "6G"}))
    with pytest.raises(Unreadable, match="gpus must be a whole number from 0 up, not a number beyond all bounds"):
        codec.decode_spec(json.dumps({**plain, "gpus": 10**300}))
    with pytest.raises(Unreadable, match=r"^a job's request cannot be read: it is missing$"):
        codec.decode_spec(None)
    with pytest.raises(Unreadable, match="it is no object but a list"):
        codec.decode_spec("[]")


@odd.few_examples
@given(value=odd.values)
def test_a_field_is_what_it_must_be_or_an_error(value: Any) -> None:
    """Every field method returns its own type or raises an error."""
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
    ):
        got = read(take, "x")
        assert got is None or isinstance(got, kinds)
        if take == fields.whole and got is not None:
            assert 0 <= got <= MAX_INTEGER


def test_all_texts_are_texts_or_the_first_that_is_not_is_named() -> None:
    """`all_texts` reads a whole environment, and names the first value that is not a text."""
    assert {"A": "1", "B": ""} == Fields({"A": "1", "B": ""}, "it").all_texts()
    assert {} == Fields({}, "it").all_texts()
    with pytest.raises(Unreadable, match="'B' is 5, not a text"):
        Fields({"A": "1", "B": 5, "C": None}, "it").all_texts()


def test_values_that_no_process_can_get_are_refused_at_submit() -> None:
    """A spec that exceeds the kernel's limits is refused at submit.

    The error comes with a clear message, and not hours later on a host.
    """
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


def test_what_no_process_could_be_given_can_be_read() -> None:
    """The kernel's limits are checked at submit only, so that a history with such a job stays readable."""
    plain = json.loads(SPEC)

    assert {"A=B": ""} == codec.decode_spec(json.dumps({**plain, "env": {"A=B": ""}})).env
    assert 2 * MAX_STRING_BYTES == len(
        codec.decode_spec(json.dumps({**plain, "argv": ["a", "x" * 2 * MAX_STRING_BYTES]})).argv[1]
    )


def test_loaded_reads_text_and_bytes() -> None:
    """`loaded` reads text and also bytes, because files are read as bytes."""
    assert "a" in loaded(b'{"a":1}', "it")
    assert ["a"] == list(loaded('{"a":1}', "it"))
