"""A launcher with the key of the service starts what was signed, and nothing that differs from it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from factories import make_spec
from hypothesis import given, settings
from hypothesis import strategies as st
from signed_runs import JOB, KEY, fields_of, member_of, signed

from gpuqueue.codec.request import decode_spec, encode_spec, with_environment, without_environment
from gpuqueue.model.array import Array, Indexes
from gpuqueue.model.device import DeviceKind
from gpuqueue.model.job_spec import JobSpec
from gpuqueue.model.run import RunDevice
from gpuqueue.model.sweep import Axis
from gpuqueue.model.terminal_size import Window
from gpuqueue.text.units import GIB
from workers.launcher import ticket
from workers.launcher.account import Refused
from workers.launcher.become import LaunchRequest
from workers.launcher.cgroup import Limits
from workers.launcher.main import key_of, parser
from workers.launcher.ticket import PATH, admitted, others_change
from workers.run.signed_environment import INSIDE

CPU = (RunDevice(uuid="cpu-h", lease_bytes=1, kind=DeviceKind.CPU),)
GPU = (RunDevice(uuid="GPU-a", lease_bytes=6 * GIB, kind=DeviceKind.GPU, total_bytes=24 * GIB),)
ENV = {"PATH": "/opt/x/bin:/usr/bin", "HF_TOKEN": "s", "LD_LIBRARY_PATH": "/opt/cuda/lib64", "PYTHONPATH": "/h/lib"}
ADDRESS = "ab" * 32
SCRIPT = {"argv": ("/usr/bin/python3", "train.py"), "script": "train.py", "interpreter": "/usr/bin/python3"}


def request(spec: JobSpec, run_dir: Path = Path("/runs/7/1.a"), *, devices: Any = CPU, **more: Any) -> LaunchRequest:
    """Return what a worker asks for."""
    fields = fields_of(spec, run_dir, devices, **more)
    return LaunchRequest(
        name=fields["user"]["name"],
        uid=fields["user"]["uid"],
        argv=list(fields["argv"]),
        cwd=fields["cwd"],
        env=fields["env"],
        umask=fields["umask"],
        start_before=1.0,
        pty=spec.pty is not None,
        typed=fields["typed"],
        code=fields["code"],
        limits=Limits(),
        ticket=fields["ticket"],
        outputs=fields["outputs"],
        container=fields["container"] and dict(fields["container"]),
    )


def refusal(asked: LaunchRequest, key: bytes = KEY, run_dir: int = -1) -> str:
    """Return why the launcher does not start *asked*; empty if it does."""
    try:
        admitted(asked, key, run_dir)
    except Refused as error:
        return str(error)
    return ""


@pytest.mark.parametrize("devices", [CPU, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"env": {}},
        {"env": {**ENV, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "PYTHONUNBUFFERED": ""}},
        {"env": {**ENV, "PYTHONPATH": ""}},
        {"env": {**ENV, "OMP_NUM_THREADS": "3", "MASTER_ADDR": "node1", "MASTER_PORT": "29501"}},
        {"env": {**ENV, "MKL_NUM_THREADS": "$(id)"}},
        {"env": {**ENV, "GPUQUEUE_SBATCH": '{"SLURM_CPUS_PER_TASK": "4"}', "SLURM_JOB_ID": "of the submitter"}},
        {"env": {**ENV, "HOME": "/somewhere", "VIRTUAL_ENV": "/v", "EMOJI": "\N{GRINNING FACE}", "RAW": "\udcff"}},
        {"pty": Window(typed=True)},
        {"output": "out-%j.txt", "error": "err.txt", "separate_stderr": True},
        {"umask": 0o077, "separate_stderr": True, "warm": True, "name": "x", "tags": ("a",)},
    ],
)
def test_what_a_worker_starts_is_what_was_signed(changes: dict[str, Any], devices: Any) -> None:
    """Whatever the worker adds for the devices, the hook and the caps, the job starts with its signed PATH."""
    spec = signed(make_spec(**{"env": ENV, "argv": ("sh", "-c", "echo {index} \udcff"), "cwd": "/h/x", **changes}))
    asked = request(spec, devices=devices, threads=True)

    assert "" == refusal(asked)
    started = admitted(asked, KEY, None)
    assert started.env.get("PATH") == spec.env.get("PATH")
    assert {**started.env, "PATH": ""} == {**asked.env, "PATH": ""}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GPUQUEUE_MEM_BYTES", "a[$(id)]"),
        ("GPUQUEUE_ATTEMPT", "1+a[`id`]"),
        ("GPUQUEUE_TOKEN", "1.a; id"),
        ("CUDA_VISIBLE_DEVICES", "0$(id)"),
        ("CUDA_DEVICE_ORDER", "x y"),
        ("GPUQUEUE_DEVICES", "GPU-1\n"),
        ("PYTHONUNBUFFERED", "a[$(id)]"),
    ],
)
def test_a_variable_of_the_run_that_a_shell_would_evaluate_is_refused(name: str, value: str) -> None:
    """These are set by the worker and not signed, and ``$((GPUQUEUE_MEM_BYTES / 1024))`` runs commands in bash."""
    asked = request(signed(make_spec(env=ENV)))

    assert "the variables of its run" in refusal(asked._replace(env={**asked.env, name: value}))


def test_what_an_edit_changes_needs_no_new_ticket() -> None:
    """Memory, devices, times and names are not signed, and neither is the memory of a retry."""
    spec = signed(make_spec(env=ENV))

    assert "" == refusal(request(replace(spec, mem_bytes=9 * GIB, gpus=2, time_limit_s=7.0, name="other", pool="p")))


def test_a_job_that_comes_back_from_the_history_starts() -> None:
    """A store that lost its data gets the request, without its environment, and the environment from the history."""
    spec = signed(make_spec(env=ENV))

    again = decode_spec(with_environment(*without_environment(encode_spec(spec))))

    assert "" == refusal(request(again))


def test_members_of_arrays_start_with_their_own_values() -> None:
    """A member has its values in the command and the environment, and no other member's."""
    array = Array(indexes=Indexes.parse("0-5"), axes=(Axis("lr", "1e-3,1e-4"), Axis("seed", "[0,1],1,2")))
    spec = make_spec(argv=("train", "--lr={lr}", "{seed}", "{{seed}}", '{"a": 1}'), array=array, env=ENV)
    member, job_id = member_of(spec, 4)
    other, _ = member_of(spec, 5)

    assert ("train", "--lr=1e-4", "1", "{seed}", '{"a": 1}') == member.argv
    assert "" == refusal(request(member, job_id=job_id))
    assert "its command" in refusal(request(other, job_id=job_id))
    assert "GPUQUEUE_SWEEP_SEED" in refusal(request(replace(other, argv=member.argv), job_id=job_id))
    for wrong in (JOB, JOB + 7, JOB + 6 + 10**6):
        assert "its id" in refusal(request(member, job_id=wrong))


def test_a_link_has_its_signed_name() -> None:
    """A worker that was taken over makes no link of another name, as a file that a shell of the person reads."""
    spec, plain = signed(make_spec(output="out-%j.txt", env=ENV)), signed(make_spec(env=ENV))
    elsewhere = {"log": ".ssh/authorized_keys", "stderr": None}

    assert "" == refusal(request(spec)._replace(outputs={}))  # by a worker of an earlier version
    for each, outputs in ((spec, elsewhere), (plain, elsewhere), (spec, {"stderr": "out-%j.txt"})):
        assert "the links to its output" in refusal(request(each)._replace(outputs=outputs))


def test_a_container_has_its_signed_image_and_binds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that was taken over chooses no image, no bind and no engine of its own."""
    monkeypatch.setattr(ticket, "others_change", lambda found, uid: (found, uid) != ("/usr/bin/ch-run", 0))
    spec = signed(make_spec(container="torch", binds=("/a:/a",), env=ENV, cwd="/h/x"))
    plain = signed(make_spec(env=ENV, cwd="/h/x"))
    asked = request(spec)
    assert asked.container is not None
    box = {**asked.container, "program": "/usr/bin/ch-run"}

    assert "" == refusal(asked._replace(container=box))
    others: list[dict[str, Any] | None] = [
        None,
        {**box, "image": "other"},
        {**box, "binds": ("/a:/a", "/etc:/etc")},
        {**box, "binds": ()},
        {**box, "program": "/tmp/ch-run"},
        {**box, "program": "/usr/bin/ls"},
        {**box, "engine": "podman"},
    ]
    assert [] == [each for each in others if "its container" not in refusal(asked._replace(container=each))]
    assert "its container" in refusal(request(plain)._replace(container=box))


def test_a_part_of_an_array_starts_no_other_member() -> None:
    """The indexes are signed."""
    member, job_id = member_of(make_spec(array=Array(indexes=Indexes.parse("1,3-9:2"))), 5)

    assert "" == refusal(request(member, job_id=job_id))
    assert "its id" in refusal(request(member, job_id=job_id + 1))


@pytest.mark.parametrize("path", ["/opt/x/bin:/usr/bin", None])
def test_a_job_with_an_environment_gets_its_python(path: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker chooses the program, if nobody but root and the submitter can change it."""
    monkeypatch.setattr(ticket, "others_change", lambda found, _: not found.startswith("/opt/torch/bin"))
    env = {"VIRTUAL_ENV": "/v", "A": "1", **({} if path is None else {"PATH": path})}
    spec = signed(make_spec(environment="torch", env=env, **SCRIPT))

    asked = request(spec, python="/opt/torch/bin/python3.12")

    assert "" == refusal(asked)
    assert f"/opt/torch/bin:{path or PATH}" == admitted(asked, KEY, None).env["PATH"]
    command = signed(make_spec(environment="torch", env=env, argv=("torchrun", "train.py")))
    assert "" == refusal(request(command, python="/opt/torch/bin/python"))
    assert "its command" in refusal(request(spec, python="/opt/torch/bin/perl"))
    assert "its command" in refusal(request(spec, python="/tmp/python"))
    assert "PATH" in refusal(request(command, python="/tmp/python"))
    assert "VIRTUAL_ENV" in refusal(asked._replace(env={**asked.env, "VIRTUAL_ENV": "/tmp"}))
    assert "its command" in refusal(request(signed(make_spec(env=env, **SCRIPT)), python="/opt/torch/bin/python"))


@pytest.mark.parametrize("directory", [".", "src"])
def test_a_job_with_code_starts_in_its_copy(directory: str, tmp_path: Path) -> None:
    """The code must be the signed one, in the run directory. The PATH of the worker is not taken over."""
    spec = signed(make_spec(snapshot=f"{ADDRESS}:{directory}", env={"A": "1"}))
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        asked = request(spec, tmp_path)
        assert "" == refusal(asked, run_dir=fd)
        assert "PATH" not in admitted(asked, KEY, fd).env
        assert asked.code is not None
        others = [
            asked._replace(code={**asked.code, "address": "cd" * 32}),
            asked._replace(code={**asked.code, "cwd": "other"}),
            asked._replace(code={**asked.code, "directory": f"{tmp_path}/other"}),
            asked._replace(cwd="/tmp"),
            asked._replace(cwd=f"{asked.cwd}/.."),
            asked._replace(code=None),
            request(spec, tmp_path.parent),
        ]
        assert not [each for each in others if "differs from" not in refusal(each, run_dir=fd)]
        assert "its code" in refusal(request(spec, tmp_path))
        plain = signed(make_spec(env={"A": "1"}))
        assert "its code" in refusal(request(plain)._replace(code=asked.code), run_dir=fd)
    finally:
        os.close(fd)


GOOD = signed(make_spec(env=ENV, argv=("python", "-c", "print()"), cwd="/h"))
#: Texts that are no number of threads.
COUNTS = ("", "0", "-1", "+1", " 1", "1\n", "1.5", "1e3", "0x10")
TAMPERED: dict[str, Callable[[LaunchRequest], LaunchRequest]] = {
    "another account": lambda asked: asked._replace(name="eve"),
    "another uid": lambda asked: asked._replace(uid=asked.uid + 1),
    "another command": lambda asked: asked._replace(argv=["sh", "-c", "evil"]),
    "one more argument": lambda asked: asked._replace(argv=[*asked.argv, "x"]),
    "another directory": lambda asked: asked._replace(cwd="/tmp"),
    "another umask": lambda asked: asked._replace(umask=0),
    "a terminal": lambda asked: asked._replace(pty=True),
    "input to type": lambda asked: asked._replace(typed=True),
    "another job": lambda asked: asked._replace(env={**asked.env, "GPUQUEUE_JOB_ID": "8"}),
    "no job": lambda asked: asked._replace(env={**asked.env, "GPUQUEUE_JOB_ID": "x"}),
    "a loader variable": lambda asked: asked._replace(env={**asked.env, "LD_PRELOAD": "/tmp/evil.so"}),
    "another loader variable": lambda asked: asked._replace(env={**asked.env, "LD_LIBRARY_PATH": "/tmp"}),
    "another PATH": lambda asked: asked._replace(env={**asked.env, "PATH": f"/tmp:{asked.env['PATH']}"}),
    "a startup file": lambda asked: asked._replace(env={**asked.env, "PYTHONSTARTUP": "/tmp/evil.py"}),
    "another PYTHONPATH": lambda asked: asked._replace(env={**asked.env, "PYTHONPATH": f"/tmp:{INSIDE}:/h/lib"}),
    "another secret": lambda asked: asked._replace(env={**asked.env, "HF_TOKEN": "t"}),
    "a variable less": lambda asked: asked._replace(
        env={name: value for name, value in asked.env.items() if name != "LD_LIBRARY_PATH"}
    ),
    "another address of its ranks": lambda asked: asked._replace(env={**asked.env, "MASTER_ADDR": "evil.example"}),
    "another port of its ranks": lambda asked: asked._replace(env={**asked.env, "PET_MASTER_PORT": "29500"}),
    "another number of threads": lambda asked: asked._replace(env={**asked.env, "MKL_NUM_THREADS": "64"}),
    "a member's variable": lambda asked: asked._replace(env={**asked.env, "GPUQUEUE_SWEEP_X": "1"}),
}


@pytest.mark.parametrize("devices", [CPU, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize("how", TAMPERED)
def test_what_differs_from_the_ticket_is_refused(how: str, devices: Any) -> None:
    """One line says which job, and what differs."""
    asked = TAMPERED[how](request(GOOD, devices=devices))

    reason = refusal(asked)
    assert reason.startswith(("job 7 differs from", "job 8 differs from", "job 0 differs from")), reason
    assert 1 == len(reason.splitlines())


@pytest.mark.parametrize(
    "changed",
    [
        {"PYTHONPATH": ["/h/lib", f"/tmp:{INSIDE}:/h/lib"]},
        {"PYTHONPATH": ["/h/other", f"{INSIDE}:/h/other"]},
        {"LD_PRELOAD": [None, "/tmp/evil.so"]},
        {"CUDA_MPS_PIPE_DIRECTORY": [None, "/runs/7/1.a"]},
        {"CUPY_GPU_MEMORY_LIMIT": [None, "a[$(id)]"]},  # $((CUPY_GPU_MEMORY_LIMIT / 2)) would run it
        {"TF_FORCE_GPU_ALLOW_GROWTH": ["no", "true"]},
        {"TF_FORCE_GPU_ALLOW_GROWTH": ["true"]},
        {"TF_FORCE_GPU_ALLOW_GROWTH": [{}, "true"]},
        {"PYTHONPATH": [["/h/lib"], f"{INSIDE}:/h/lib"]},
        *({"OMP_NUM_THREADS": [None, count]} for count in (*COUNTS, "12345", "\u0663", "a[$(id)]", 4, None, ["4"])),
        {"OMP_NUM_THREADS": ["8", "4"]},  # the submitter has signed none
        {"SLURM_JOB_ID": [None, str(JOB)]},  # the script is none for sbatch
        {"BASH_FUNC_srun%%": [None, "() { id; }"]},
        {"MASTER_ADDR": [None, "127.0.0.1"]},  # the launcher sets these
        {"MASTER_ADDR": [None, "evil.example"]},
        {"MASTER_PORT": [None, "29500"]},
        {"PET_MASTER_PORT": [None, "1$(id)"]},
        {"PET_MASTER_ADDR": [None, "evil.example"]},
        ["PYTHONPATH"],
        7,
        None,
    ],
)
def test_what_the_worker_says_it_has_changed_is_not_believed(changed: object) -> None:
    """Only the caps, the hook, threads and MPS may be changed, and what was there before must be what was signed."""
    env = {**request(GOOD).env, "GPUQUEUE_CHANGED": json.dumps(changed)}
    if isinstance(changed, dict):
        env.update({name: pair[-1] for name, pair in changed.items()})

    assert "its environment" in refusal(request(GOOD)._replace(env=env))


@pytest.mark.parametrize("value", [None, "8", "x$(id)"])
@pytest.mark.parametrize("name", ["SLURM_JOB_ID", "SLURM_SUBMIT_DIR", "SLURM_JOB_NODELIST", "SLURM_CPUS_PER_TASK"])
def test_a_script_for_sbatch_gets_the_variables_of_slurm_as_they_are(name: str, value: str | None) -> None:
    """A worker that was taken over can neither leave one out nor give it another value."""
    asked = request(signed(make_spec(env={**ENV, "GPUQUEUE_SBATCH": '{"SLURM_CPUS_PER_TASK": "4"}'}, cwd="/h/x")))
    assert "" == refusal(asked)
    env = {key: each for key, each in asked.env.items() if key != name}
    changed = json.loads(env["GPUQUEUE_CHANGED"])
    del changed[name]
    if value is not None:
        env[name], changed[name] = value, [None, value]

    assert name in refusal(asked._replace(env={**env, "GPUQUEUE_CHANGED": json.dumps(changed)}))


@settings(max_examples=25)
@given(
    env=st.dictionaries(st.text(min_size=1), st.text(), max_size=4),
    argv=st.lists(st.text(), min_size=1, max_size=3).filter(lambda words: bool(words[0])),
    other=st.tuples(st.text(min_size=1), st.text()),
    is_gpu=st.booleans(),
)
def test_any_request_starts_and_any_other_variable_does_not(
    env: dict[str, str], argv: list[str], other: tuple[str, str], *, is_gpu: bool
) -> None:
    """The encodings of worker and service agree for all texts; one more or another variable is refused."""
    usable = {name: value for name, value in env.items() if "\0" not in name + value and "=" not in name}
    spec = signed(make_spec(env=usable, argv=tuple(word.replace("\0", "") or "x" for word in argv)))
    asked = request(spec, devices=GPU if is_gpu else CPU)
    if "GPUQUEUE_CHANGED" in usable:
        return

    assert "" == refusal(asked)
    name, value = other
    may_differ = name in ticket.CAPS or name in ticket.ticket.SET_FOR_EACH_RUN or asked.env.get(name) == value
    if not may_differ and not (name == "PATH" and "PATH" not in usable):
        assert "" != refusal(asked._replace(env={**asked.env, name: value}))


@given(st.data())
def test_a_ticket_with_any_other_character_is_refused(data: st.DataObject) -> None:
    """Neither the signature nor the signed text can be changed."""
    asked = request(GOOD)
    assert asked.ticket is not None
    place = data.draw(st.integers(0, len(asked.ticket) - 1))
    letter = data.draw(st.characters().filter(lambda found: found != asked.ticket[place]))  # type: ignore[index]

    changed = asked.ticket[:place] + letter + asked.ticket[place + 1 :]

    assert "has a ticket that the service of this host has not signed" in refusal(asked._replace(ticket=changed))


def test_only_the_key_of_the_service_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No ticket, one of another key, and one that has expired are refused, each with what to do."""
    asked = request(GOOD)

    assert "job 7 was not signed by the service" in refusal(asked._replace(ticket=None))
    assert "submit it again" in refusal(asked._replace(ticket=None))
    assert "has a ticket that the service of this host has not signed" in refusal(asked, key=bytes(32))
    now = time.time()
    monkeypatch.setattr(ticket.time, "time", lambda: now + 91 * 86400)
    assert "the ticket of job 7 has expired: gpuqueue edit 7" in refusal(asked)


def test_without_a_key_nothing_is_checked() -> None:
    """A launcher whose root has named no key starts jobs as before."""
    asked = request(make_spec(env=ENV))._replace(argv=["anything"])

    assert asked is admitted(asked, None, None)


def test_a_program_that_others_can_change_is_no_environment(tmp_path: Path) -> None:
    """Each directory above counts, by its name and where a link leads."""
    assert others_change("bin/python", 1001)
    assert others_change("", 1001)
    assert others_change(str(tmp_path / "missing"), 1001)
    assert others_change("/proc/self/root/usr/bin/env", 1001)  # it leads each process elsewhere
    assert others_change(str(tmp_path), 2**30)  # below /tmp, where everybody can write
    assert not others_change("/usr/bin/env", 1001)


@pytest.mark.parametrize(
    ("content", "mode", "says"),
    [
        ("0f" * 32 + "\n", 0o440, "others than its owner can read the key"),
        ("0f" * 31, 0o400, "holds no key: it must have 64 hexadecimal digits"),
        ("", 0o400, "holds no key"),
        (None, 0o400, "No such file"),
    ],
)
def test_a_key_that_cannot_be_used_ends_the_launcher(tmp_path: Path, content: str | None, mode: int, says: str) -> None:
    """It does not go on without one, which would start unsigned jobs."""
    path = tmp_path / "key"
    if content is not None:
        path.write_text(content)
        path.chmod(mode)
    words = ["--account", "a", "--group", "g", "--socket", "s", "--runs", "/r", "--ticket-key", str(path)]

    with pytest.raises(SystemExit, match=says):
        key_of(parser().parse_args(words))


def test_a_key_is_read(tmp_path: Path) -> None:
    """64 hexadecimal digits are 32 bytes; without the option there is none."""
    path = tmp_path / "key"
    path.write_text(f"{KEY.hex()}\n")
    path.chmod(0o400)
    words = ["--account", "a", "--group", "g", "--socket", "s", "--runs", "/r"]

    assert KEY == key_of(parser().parse_args([*words, "--ticket-key", str(path)]))
    assert key_of(parser().parse_args(words)) is None


def test_a_number_of_threads_that_the_person_has_signed_is_theirs() -> None:
    """The worker adds a number only where the person has set none, and takes none away."""
    spec = signed(make_spec(env={**ENV, "NUMEXPR_NUM_THREADS": "3"}))
    asked = request(spec, threads=True)
    changed = json.loads(asked.env["GPUQUEUE_CHANGED"])

    assert "" == refusal(asked)
    assert "3" == asked.env["NUMEXPR_NUM_THREADS"]
    for before in (None, "3"):
        more = {**changed, "NUMEXPR_NUM_THREADS": [before, "64"]}
        env = {**asked.env, "NUMEXPR_NUM_THREADS": "64", "GPUQUEUE_CHANGED": json.dumps(more)}
        assert "its environment" in refusal(asked._replace(env=env))
