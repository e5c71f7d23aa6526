"""The form of the page: what is typed becomes the request of a job, and a job becomes what would be typed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from factories import make_spec

from gpuqueue.client.edit import change_of
from gpuqueue.errors import BadRequest
from gpuqueue.model.device import DeviceFilter
from gpuqueue.model.job_spec import JobSpec, Priority
from gpuqueue.model.page import JobForm
from gpuqueue.model.placement import Placement
from gpuqueue.service.web.job_form import form_of, new_job_of, retry_of, size_typed
from gpuqueue.text.units import GIB, MIB, parse_bytes

ADDRESS = "ab" * 32
FORM = JobForm(script="train.py", snapshot=ADDRESS, mem="6G")
NAMES = {"GPU-7": "nodeA:0"}


def uuids_of(names: Sequence[str]) -> Sequence[str]:
    """Return the UUIDs of the devices that *names* name."""
    return [next(uuid for uuid, known in NAMES.items() if known == each) for each in names]


def test_a_python_script_runs_with_the_python_of_its_host() -> None:
    """Each field has the form of the command line."""
    made = new_job_of(
        replace(
            FORM,
            args="--lr 1e-3 --note 'two words'",
            gpus=2,
            device="gpu",
            time_limit="1h30m",
            cpus="1.5",
            cpu_mem="32G",
            name="night run",
            priority="high",
            pool="big",
            tags="night, paper",
            environment="torch",
        ),
        uuids_of,
    )
    assert ("python3", "train.py", "--lr", "1e-3", "--note", "two words") == made.argv
    assert ("train.py", "python3", "torch", f"{ADDRESS}:.") == (
        made.script,
        made.interpreter,
        made.environment,
        made.snapshot,
    )
    assert (6 * GIB, False, 2, DeviceFilter.GPU, 5400.0) == (
        made.mem_bytes,
        made.auto_mem,
        made.gpus,
        made.device,
        made.time_limit_s,
    )
    assert ("night run", Priority.HIGH, "big", ("night", "paper")) == (made.name, made.priority, made.pool, made.tags)
    assert (1.5, 32 * GIB) == (made.cpus, made.cpu_mem_bytes)


def test_other_scripts_start_themselves() -> None:
    """A file that is no Python script has its own first line. Empty fields leave the choice to the site."""
    made = new_job_of(replace(FORM, script="run.sh", mem=""), uuids_of)
    assert (("./run.sh",), None, None, False, None) == (
        made.argv,
        made.interpreter,
        made.mem_bytes,
        made.auto_mem,
        made.name,
    )
    assert made.env, "an empty environment would be taken for a damaged request"


def test_memory_may_be_learned_and_a_device_named() -> None:
    """``auto`` and a device are those of the command line."""
    made = new_job_of(replace(FORM, mem="auto", device="nodeA:0"), uuids_of)
    assert (True, None, ("GPU-7",)) == (made.auto_mem, made.mem_bytes, made.placement.devices)


def test_a_new_job_may_be_an_array_that_waits_and_notifies() -> None:
    """The texts are those of the options; of a sweep each line is a parameter."""
    made = new_job_of(
        replace(
            FORM,
            sweep="lr=1e-3,1e-4\nseed=0..2",
            at_once="2",
            after="12 13:any",
            on_end="team",
            on_fail="team, ops",
        ),
        uuids_of,
    )
    assert made.array is not None
    assert (6, 2) == (len(made.array), made.array.at_once)
    assert ["12:ok", "13:any"] == [str(each) for each in made.waits.after]
    assert [("team", "end"), ("team", "fail"), ("ops", "fail")] == [
        (each.target, str(each.when)) for each in made.notifications
    ]
    plain = new_job_of(replace(FORM, array="0-9%3"), uuids_of)
    assert plain.array is not None
    assert (10, 3) == (len(plain.array), plain.array.at_once)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"at_once": "many", "array": "0-9"}, "'many' is no number of members at once"),
        ({"at_once": "4"}, "a concurrency limit needs an array"),
        ({"array": "0-9", "sweep": "lr=1,2"}, "exclude each other"),
        ({"sweep": "lr"}, "is no sweep"),
        ({"mem": "6"}, "add the unit: 6M or 6G"),
        ({"mem": "much"}, "is not a size: write it like 6G"),
        ({"time_limit": "2"}, "add the unit: 2s, 2m or 2h"),
        ({"cpus": "many"}, "cpus must be a number such as 4 or 0.5, not 'many'"),
        ({"cpu_mem": "32"}, "cpu_mem: '32' is not a size: add the unit"),
        ({"args": "it's"}, "a quote or a backslash without its end"),
        ({"tags": "a b/c"}, "'b/c' is no tag"),
        ({"priority": "top"}, "priority must be one of low, normal, high, urgent"),
        ({"script": ""}, "there is no script: choose a file"),
        ({"snapshot": ""}, "there is no script: choose a file"),
        ({"snapshot": "x"}, "is no address of a snapshot"),
        ({"script": "../train.py"}, "is no name of a script"),
        ({"script": "-c.py"}, "is no name of a script"),
        ({"device": "gpu,cpu"}, "cannot be combined"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, str], message: str) -> None:
    """The messages are those of the command line."""
    with pytest.raises(BadRequest, match=message):
        new_job_of(replace(FORM, **changes), uuids_of)


SPEC = make_spec(
    argv=("python3", "train.py", "--lr", "1e-3", "two words"),
    script="train.py",
    interpreter="python3",
    mem_bytes=3 * GIB // 2,
    gpus=1,
    placement=Placement(devices=("GPU-7",)),
    device=DeviceFilter.ANY,
    time_limit_s=93_784.0,
    cpus=4.0,
    cpu_mem_bytes=GIB,
    name="night",
    priority=Priority.LOW,
    pool="big",
    tags=("a", "b"),
)


def test_a_job_is_shown_as_it_would_be_typed() -> None:
    """Sizes and durations are read back exactly."""
    expected = JobForm(
        script="train.py",
        python="python3",
        args="--lr 1e-3 'two words'",
        mem="1536M",
        device="nodeA:0",
        time_limit="1d2h3m4s",
        cpus="4",
        cpu_mem="1G",
        name="night",
        priority="low",
        pool="big",
        tags="a b",
    )
    assert expected == form_of(SPEC, NAMES)
    for size_bytes in (6 * GIB, 512 * MIB, GIB + 1, 1, 1025 * 1024):
        form = replace(FORM, mem=form_of(replace(SPEC, mem_bytes=size_bytes), {}).mem)
        assert size_bytes == new_job_of(form, uuids_of).mem_bytes
    for cpus in (0.01, 0.1 + 0.2, 3, 10_000.0):
        form = replace(FORM, cpus=form_of(replace(SPEC, cpus=cpus), {}).cpus)
        assert cpus == new_job_of(form, uuids_of).cpus
    bare = form_of(make_spec(placement=Placement(exclusive=True, whole=True)), {})
    assert [""] * 5 == [bare.mem, bare.args, bare.time_limit, bare.cpus, bare.cpu_mem]


def test_a_script_runs_with_the_python_that_is_typed() -> None:
    """A .py file without an environment may name one. Without a name it is the first python3 of the host."""
    named = new_job_of(replace(FORM, python=" /opt/bin/python "), uuids_of)
    assert (("/opt/bin/python", "train.py"), "/opt/bin/python") == (named.argv, named.interpreter)
    first = new_job_of(FORM, uuids_of)
    assert (("python3", "train.py"), "python3") == (first.argv, first.interpreter)
    for more in ({"script": "run.sh"}, {"environment": "torch"}):
        with pytest.raises(BadRequest, match="leave the Python empty"):
            new_job_of(replace(FORM, python="python3", **more), uuids_of)


def changed(**values: object) -> JobSpec:
    """Return the spec of a job that runs again with other *values* in the form."""
    before = form_of(SPEC, NAMES)
    return change_of(retry_of(replace(before, **values), before).changes, uuids_of)(SPEC)  # type: ignore[arg-type]


def test_only_what_was_changed_changes() -> None:
    """The same form yields the same request, and each field its own change."""
    before = form_of(SPEC, NAMES)
    same = retry_of(before, before)
    assert (None, False) == (same.args, bool(same.changes))
    assert ("--lr", "2") == retry_of(replace(before, args="--lr 2"), before).args
    assert (None, "/opt/bin/python") == (
        same.python,
        retry_of(replace(before, python="/opt/bin/python "), before).python,
    )
    assert retry_of(replace(before, python=""), before).python is None
    assert () == retry_of(replace(before, args=""), before).args
    assert 8 * GIB == changed(mem="8G").mem_bytes
    assert (2, DeviceFilter.GPU, ()) == (
        changed(gpus=2, device="gpu").gpus,
        changed(device="gpu").device,
        changed(device="gpu").placement.devices,
    )
    assert (DeviceFilter.ANY, ()) == (changed(device="").device, changed(device="").placement.devices)
    assert (None, "") == (changed(time_limit="").time_limit_s, changed(pool=" ").pool)
    assert ("day", Priority.URGENT) == (changed(name="day").name, changed(priority="urgent").priority)
    assert (0.5, GIB) == (changed(cpus="0.5").cpus, changed(cpus="0.5").cpu_mem_bytes)
    assert (4.0, None) == (changed(cpu_mem=" ").cpus, changed(cpu_mem=" ").cpu_mem_bytes)


@pytest.mark.parametrize(
    ("values", "message"),
    [({"mem": " "}, "the memory is empty"), ({"name": ""}, "the name is empty"), ({"mem": "x"}, "is not a size")],
)
def test_a_field_that_must_have_a_value_keeps_one(values: dict[str, object], message: str) -> None:
    """An empty field is no request to forget the value."""
    with pytest.raises(BadRequest, match=message):
        changed(**values)


def test_a_size_in_a_field_is_what_a_person_would_type() -> None:
    """An advised size is a tenth of a gigabyte, which is no whole number of bytes; the field had 4613734.4K."""
    assert ["4.4G", "6G", "512M", "1.5K"] == [size_typed(parse_bytes(text)) for text in ("4.4G", "6G", "512M", "1.5K")]
    assert parse_bytes(size_typed(4_724_464_027)) == 4_724_464_027
