from __future__ import annotations

import os
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from factories import make_spec
from hypothesis import given
from hypothesis import strategies as st

from gpuqueue.codec.request import (
    MAX_SPEC_BYTES,
    decode_ended,
    decode_environment,
    decode_request,
    decode_spec,
    decode_started,
    encode_ended,
    encode_environment,
    encode_spec,
    encode_started,
    member_note,
    of_member,
    whole_payload,
    with_environment,
    without_environment,
)
from gpuqueue.errors import BadRequest, Unreadable
from gpuqueue.model.array import Array, Indexes, Member
from gpuqueue.model.dependencies import NO_WAITS, Condition, Dependency, Waits
from gpuqueue.model.device import Activity, DeviceFilter, DeviceKind, Peak, PeakSource, Timeline
from gpuqueue.model.environment import is_secret
from gpuqueue.model.job_spec import Checkout, Priority
from gpuqueue.model.notification import Notification, When
from gpuqueue.model.placement import ANYWHERE, Placement, Preference
from gpuqueue.model.retries import NO_RETRIES, Retries, RetryOn
from gpuqueue.model.run import Ended, Ending, EndingKind, RunDevice, RunNote
from gpuqueue.model.terminal_size import Window
from gpuqueue.text.units import GIB

GOLDEN = Path(__file__).parents[2] / "golden"

#: Any text that can be an argument of a process: no NUL, undecodable bytes as lone surrogates.
argument = st.text(
    alphabet=st.one_of(
        st.characters(exclude_characters="\0", exclude_categories=["Cs"]), st.sampled_from("\udc80\udcff")
    )
)


#: Any text that can be the name of an environment variable.
variable = argument.filter(lambda name: name and "=" not in name)


@given(argv=st.lists(argument, max_size=5), env=st.dictionaries(variable, argument, max_size=5))
def test_a_spec_comes_out_as_it_went_in(argv: list[str], env: dict[str, str]) -> None:
    """A spec survives encoding and decoding, including arguments that are not valid UTF-8.

    The encoded text is pure ASCII.
    """
    spec = make_spec(argv=("prog", *argv), env=env, time_limit_s=3.5, priority=Priority.HIGH, script="a.py")

    text = encode_spec(spec)

    assert text.isascii()
    assert spec == decode_spec(text)


def test_what_a_run_brings_comes_out_as_it_went_in() -> None:
    """The start and end reports of a run survive the way to the history."""
    device = RunDevice(
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
    ending = Ending.stopped(EndingKind.TIMED_OUT, -15, "over")

    limits = {"threads": 4, "open_files": 1024}

    assert ("/log", (device,), {}) == decode_started(encode_started(log_path="/log", devices=(device,)))
    assert ("/log", (device,), limits) == decode_started(
        encode_started(log_path="/log", devices=(device,), limits=limits)
    )
    newer = encode_started(log_path="/log", devices=(device,), limits={**limits, "nice": "-5"})  # type: ignore[dict-item]
    assert ("/log", (device,), limits) == decode_started(newer), "what a later version adds is left out"
    notes = RunNote(kind="ended_processes", items=("sleep 9 (pid 7)",), count=2), RunNote(kind="of_a_newer_version")
    ended = Ended(ending=ending, duration_s=1.5, devices=(device,), peak_at_once_bytes=5, notes=notes)
    text = encode_ended(ending=ending, duration_s=1.5, devices=(device,), peak_at_once_bytes=5, notes=notes)
    assert ended == decode_ended(text)


def test_a_spec_that_is_too_large_is_refused() -> None:
    """A spec that is too large is refused, because the store's memory is not for data sets."""
    with pytest.raises(BadRequest, match="put large inputs into a file"):
        encode_spec(make_spec(argv=("echo", *["x" * 1000] * (MAX_SPEC_BYTES // 1000))))
    with pytest.raises(BadRequest, match=r"smaller environment \(env -i\)"):
        encode_spec(make_spec(env={f"V{n}": "x" for n in range(100_000)}))


def test_a_request_of_version_1_loads_for_ever() -> None:
    """A request that any version wrote in format 1 can be read, with only the fields that are always there."""
    spec = decode_spec((GOLDEN / "spec-v1.json").read_text())

    assert ("train.py", "ada", 6 * GIB) == (spec.script, spec.account.name, spec.mem_bytes)
    assert ("/venv/bin/python", "train.py", "--lr", "1e-3") == spec.argv
    assert (None, ANYWHERE, None, None, None) == (spec.device, spec.placement, spec.pty, spec.signal, spec.git)
    assert (True, True, False, 0o022) == (spec.requeue, spec.cap, spec.warm, spec.umask)
    assert (NO_WAITS, NO_RETRIES, (), ()) == (spec.waits, spec.retries, spec.notifications, spec.tags)


def test_every_field_of_version_1_loads_for_ever() -> None:
    """Every field that a request of format 1 can have is read."""
    spec = decode_spec((GOLDEN / "spec-v1-full.json").read_text())

    wanted = Placement(exclusive=True, models=("A100", "H100"), devices=("GPU-1", "GPU-2"), preference=Preference.PACK)
    assert (DeviceFilter.ANY, wanted, "big", Priority.HIGH) == (spec.device, spec.placement, spec.pool, spec.priority)
    assert (False, True, 0o007, Window(columns=132, rows=50)) == (spec.cap, spec.warm, spec.umask, spec.pty)
    assert ("USR1@120", ("sweep",), 12) == (str(spec.signal), spec.tags, spec.retry_of)
    after = (Dependency(12), Dependency(13, Condition.ANY))
    begin_at = datetime(2026, 11, 1, 9, tzinfo=timezone.utc)
    assert Waits(after=after, begin_at=begin_at, dedupe="nightly") == spec.waits
    assert Retries(times=3, on=(RetryOn.FAILED, RetryOn.OUT_OF_MEMORY)) == spec.retries
    assert (Notification("ada@example.org", When.FAIL),) == spec.notifications
    assert Checkout(commit="3442fefc16a178d9247594f0e8aff2656bbd2ad1", branch="main", dirty=True) == spec.git


@pytest.mark.parametrize(
    "fields",
    [
        *({"device": each} for each in (None, *DeviceFilter)),
        {"cap": False},
        {"placement": Placement(exclusive=True, whole=True)},
        {"pty": Window(columns=7, rows=3)},
        {"pty": Window(columns=7, rows=3, typed=True)},
        {"git": Checkout(commit="3442fefc16a178d9247594f0e8aff2656bbd2ad1")},
        {"git": Checkout(commit="3442fefc16a178d9247594f0e8aff2656bbd2ad1", branch="a/b", dirty=False)},
        {"umask": 0o077},
        {"warm": True},
        {"separate_stderr": True},
        {"output": "out-%j.txt", "error": "err.txt"},
        {"cpus": 0.5, "cpu_mem_bytes": 32 * 2**30},
        {"environment": "torch-2.6"},
        {"probe": "steps=5", "time_limit_s": 9.0},
        {"expected_utilisation": 0.63},
        {"expected_utilisation": 0.0},
        {"snapshot": f"{'0' * 64}:src", "keep": ("results/**", "!*.tmp")},
    ],
    ids=str,
)
def test_a_field_comes_out_as_it_went_in(fields: dict[str, Any]) -> None:
    """A field of a request survives encoding and decoding."""
    spec = make_spec(**fields)
    assert spec == decode_spec(encode_spec(spec))


@pytest.mark.parametrize("size", [0, -1, 65536, True, 80.0, "80", None])
def test_a_terminal_of_no_size_is_refused(size: Any) -> None:
    """An invalid terminal size is refused, whatever its type."""
    with pytest.raises(BadRequest, match="a terminal's size must be whole numbers"):
        Window(columns=size)
    with pytest.raises(BadRequest, match="typed must be true or false"):
        Window(typed=1)  # type: ignore[arg-type]
    with pytest.raises(BadRequest, match="pty must be the size of a terminal"):
        make_spec(pty=(80, 24))


def test_an_array_and_its_member_load_for_ever() -> None:
    """An array and one of its members load. The array holds the request, the member holds what it runs."""
    array, member = (decode_spec((GOLDEN / name).read_text()) for name in ("array-v1.json", "member-v1.json"))

    assert array.array == Array.asked(None, ["lr=1e-3,1e-4", "seed=0..2"], 2)
    assert ("--lr", "{lr}") == array.argv[2:]
    assert (None, ("--lr", "1e-4")) == (member.array, member.argv[2:])
    assert ("17", "4", "1") == tuple(
        member.env[f"GPUQUEUE_{name}"] for name in ("ARRAY_JOB_ID", "ARRAY_INDEX", "SWEEP_SEED")
    )
    assert (member, Member(17, 4)) == decode_request((GOLDEN / "member-v1.json").read_text())
    assert (array, None) == decode_request((GOLDEN / "array-v1.json").read_text())


@pytest.mark.parametrize(
    "owner",
    [
        ',"of":17,"index":4}',
        ',"of":0,"index":0}',
        ',"of":9007199254740993,"index":1}',
        ',"of":17,"index":1234567}',
        ',"of":17,"index":4,"index":5}',
        ',"of":16,"index":3,"of":17,"index":4}',
        ',"of":17,"index":04}',
        ',"of":017,"index":4}',
        ',"of":17,"index":-4}',
        ',"of":17,"index":4.0}',
        ',"of":null,"index":4}',
        ',"of":17}',
        ',"of":1e400,"index":4}',
        ',,"of":17,"index":4}',
        ',"of":99999999999999999999,"index":4}',
        ',"name":"x,"of":17,"index":4}',
        ',"x":{"of":17,"index":4}',
        ',"x":{"y":1,"of":17,"index":4}}',
        ',"argv":7,"of":17,"index":4}',
    ],
)
@pytest.mark.parametrize("array", [None, "2-4"])
def test_a_member_is_read_as_its_text_says_however_that_ends(owner: str, array: str | None) -> None:
    """The cached reading of a member gives the same result as plain JSON.

    An array is read once for many members, from the text before the owner fields, so no text may change its meaning.
    """
    asked = make_spec(argv=("run", "{index}"), array=Array.parse(array) if array else None)
    text = encode_spec(asked)[:-1] + owner

    def read(text: str) -> object:
        try:
            return decode_request(text)
        except Unreadable:
            return None

    assert read(text + " ") == read(text)  # a space bypasses the cached reading and means nothing in JSON
    assert read(text) == read(text)


@pytest.mark.parametrize("array", ["1,5,7-9", "0-20:5%3"])
def test_an_array_survives_the_round_trip(array: str) -> None:
    """An array survives encoding and decoding.

    A member's request that is made from the array's text equals the one made from the value.
    """
    spec, member = make_spec(argv=("run", "{index}"), array=Array.parse(array)), Member(3, 5)
    text = encode_spec(spec)

    assert spec == decode_spec(text)
    assert spec.of_member(member) == decode_spec(of_member(text, member))
    assert of_member(text, member) == of_member(of_member(text, member), member)
    assert of_member(text, member) == whole_payload(member_note(member), text)
    assert text == whole_payload(text, None)


# ---- The environment of a request, taken out of it and put back. Secrets are known by their names --------------------

ENV = {"PATH": "/bin", "HF_TOKEN": "hunter2", "ODD": os.fsdecode(b"\xff\n\"'"), "aws_secret_id": "x", "EMPTY": ""}
ARRAY = Array(indexes=Indexes.parse("0-9"), at_once=None, axes=())


@pytest.mark.parametrize("member", [None, Member(7, 3)])
def test_a_request_comes_back_letter_by_letter(member: Member | None) -> None:
    """A request without its environment holds no value of it. With it, it is the same text as before.

    The store compares texts to recognise a job, so the order of the variables is kept as well.
    """
    payload = encode_spec(make_spec(env=ENV, time_limit_s=60.5, array=ARRAY if member else None))
    payload = payload if member is None else of_member(payload, member)

    bare, env = without_environment(payload)
    kept = decode_environment(*encode_environment(env))

    assert "hunter2" not in bare
    assert payload == with_environment(bare, kept.variables)
    assert () == kept.removed


def test_removed_secrets_have_their_names() -> None:
    """Of removed secrets the names stay, and all other variables. The text of the variables never has a secret."""
    variables, secrets = encode_environment(ENV)
    kept = decode_environment(variables, None)

    assert ("HF_TOKEN", "aws_secret_id") == kept.removed
    assert {name: ENV[name] for name in ("PATH", "ODD", "EMPTY")} == kept.variables
    assert "hunter2" not in variables
    assert secrets is not None
    assert encode_environment({"PATH": "/bin"})[1] is None


@pytest.mark.parametrize("payload", ["", "{", "[]", '{"env":3}', '{"env":{"A":1}}', "{}", None])
def test_a_request_that_cannot_be_read_is_not_taken_apart(payload: str | None) -> None:
    """A damaged request raises Unreadable."""
    with pytest.raises(Unreadable):
        without_environment(payload)


@pytest.mark.parametrize(
    "name",
    [
        *("HF_TOKEN", "WANDB_API_KEY", "GITHUB_TOKEN", "DB_PASSWORD", "PGPASSWORD", "REDISCLI_AUTH", "my_secret_word"),
        *("AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN", "AZURE_CLIENT_ID", "GOOGLE_APPLICATION_CREDENTIALS", "SMTP_PASS"),
    ],
)
def test_a_secret_is_known_by_its_name(name: str) -> None:
    """Tokens, keys, passwords and the variables of clouds are secrets, in any case of letters."""
    assert is_secret(name)
    assert is_secret(name.lower())


@pytest.mark.parametrize(
    "name",
    [
        "PATH",
        "HOME",
        "CONDA_PREFIX",
        "OMP_NUM_THREADS",
        "TOKENIZERS_PARALLELISM",
        "KEYBOARD",
        "SSH_AUTH_SOCK",
        "PWD",
        "AWS_REGION",
    ],
)
def test_an_ordinary_variable_is_no_secret(name: str) -> None:
    """The usual variables of a shell and of training programs are no secrets."""
    assert not is_secret(name)
