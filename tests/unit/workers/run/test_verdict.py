from __future__ import annotations

from pathlib import Path

import pytest

from gpuqueue.model.run import Ending, EndingKind
from gpuqueue.text.units import GIB, MIB
from workers.run.verdict import MAX_ERROR, TAIL_BYTES, InsideReport, hidden_failure, hints, judged, tail

FAILED = Ending.from_status(1)
DIED = InsideReport(out_of_memory=True)
SURVIVED = InsideReport(ooms_on={0: 3})


def verdict(ending: Ending = FAILED, report: InsideReport | None = None, log: bytes = b"") -> Ending:
    """Return the final ending of a job that requested 6 GiB and had a peak of 5.9 GiB."""
    return judged(ending, report, log, asked_bytes=6 * GIB, peak_bytes=round(5.9 * GIB))


@pytest.mark.parametrize(
    "line",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "RuntimeError: CUDA out of memory. Tried to allocate",
        "torch.cuda.OutOfMemoryError: CUDA out of memory.",
        "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 512 bytes",
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate",
        "CUDA_ERROR_OUT_OF_MEMORY: out of memory",
        "thrust: cudaErrorMemoryAllocation: out of memory",
        "RuntimeError: CUDA error: out of memory",
        "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory",
        "ResourceExhaustedError: Graph execution error: OOM when allocating tensor with shape[4,4] on GPU_0_bfc",
    ],
)
def test_a_log_that_says_so_makes_it_out_of_memory(line: str) -> None:
    """A log with an out-of-memory error of any framework changes the ending.

    The exit status is kept, and the detail contains the figures.
    """
    ending = verdict(log=b"\xff\x00 step 1\n" + line.encode() + b"\n")

    assert (EndingKind.OUT_OF_MEMORY, 1) == (ending.kind, ending.exit_code)
    assert "out of memory: asked 6G, peak 5.9G" == str(ending)


def test_a_program_that_gives_up_by_sigabrt_ran_out_all_the_same() -> None:
    """SIGABRT with such a log is out of memory, because C++ ends this way after an uncaught exception.

    Other signals have other causes.
    """
    log = b"terminate called after throwing an instance of 'c10::OutOfMemoryError'"

    ending = verdict(Ending.from_status(-6), log=log)

    assert (EndingKind.OUT_OF_MEMORY, 6) == (ending.kind, ending.signal)
    assert EndingKind.SIGNALLED is verdict(Ending.from_status(-11), log=log).kind


def test_a_process_that_died_of_it_needs_no_log() -> None:
    """The report from inside the process is enough, without a log."""
    assert EndingKind.OUT_OF_MEMORY is verdict(report=DIED).kind


@pytest.mark.parametrize(
    ("ending", "report", "log"),
    [
        (FAILED, None, b"ValueError: bad learning rate"),
        (FAILED, SURVIVED, b"caught one, went on, failed of something else"),
        (Ending.from_status(0), DIED, b"CUDA out of memory"),
        (Ending.from_status(-9), DIED, b"CUDA out of memory"),
        (Ending.stopped(EndingKind.CANCELLED, -15), DIED, b"CUDA out of memory"),
        (Ending.stopped(EndingKind.TIMED_OUT, 1), DIED, b"CUDA out of memory"),
    ],
)
def test_every_other_ending_stays(ending: Ending, report: InsideReport | None, log: bytes) -> None:
    """Other endings are unchanged. A success stays a success, and a run that was stopped keeps its reason."""
    assert ending == verdict(ending, report, log)


CAUGHT = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB; trying with batch size 32\n"
OOM = 'Traceback (most recent call last):\n  File "t.py", line 1, in f\ntorch.OutOfMemoryError: CUDA out of memory.\n'
KEY = "Traceback (most recent call last):\n  File \"t.py\", line 2, in <module>\nKeyError: 'learning_rate'\n"


def ending_with(error: str) -> str:
    """Return a traceback with this error."""
    return KEY.replace("KeyError: 'learning_rate'", error)


DURING = "\nDuring handling of the above exception, another exception occurred:\n\n"
CAUSED = "\nThe above exception was the direct cause of the following exception:\n\n"


@pytest.mark.parametrize(
    "log",
    [
        CAUGHT + KEY,
        OOM + DURING + KEY,
        OOM + "epoch 1\n" + KEY + "cleaned up\n",
        CAUGHT + "terminate called after throwing an instance of 'std::runtime_error'\n  what():  no such file\n",
        CAUGHT + "epoch 1\n" * 50 + "the loss is not a number\n",
        CAUGHT + '  File "train.py", line 3\n    def (\n        ^\nSyntaxError: invalid syntax\n',
    ],
)
def test_an_error_that_was_caught_is_not_the_cause_of_another_one(log: str) -> None:
    """Regression: such a run was repeated three times with twice the memory, and later jobs asked for 16G."""
    assert FAILED == verdict(log=log.encode())


@pytest.mark.parametrize(
    "log",
    [
        OOM,
        KEY + "next try\n" + OOM,
        OOM + CAUSED + KEY,
        OOM + ending_with("subprocess.CalledProcessError: Command '['python']' returned 1"),
        OOM + ending_with("torch.distributed.DistBackendError: NCCL error: remote"),
        OOM + ending_with("RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s)"),
        "".join(f"(EngineCore_DP0 pid=17) {line}\n" for line in OOM.splitlines()) + "(APIServer pid=7) bye\n" * 60,
        OOM + "Exception ignored in: <function f>\n" + KEY,
        OOM + "Exception in thread Thread-3 (_pin_memory_loop):\n" + KEY,
        OOM + "frame of C++\n" * 60,
        "cudaMalloc failed: out of memory\n" + ending_with("ValueError: Failed to load model"),
        KEY.replace(
            "KeyError: 'learning_rate'", "MyError: Graph execution error:\n\n at node\nOOM when allocating tensor"
        ),
    ],
)
def test_the_last_error_and_what_it_follows_from_decide(log: str) -> None:
    """Launchers, other ranks and threads fail after the run that lacked memory, and messages have several lines."""
    assert EndingKind.OUT_OF_MEMORY is verdict(log=log.encode()).kind


def test_the_report_of_torch_comes_before_the_texts_of_torch() -> None:
    """Torch knows that it survived. It does not know of the errors of other libraries."""
    assert FAILED == verdict(report=SURVIVED, log=CAUGHT.encode())
    assert EndingKind.OUT_OF_MEMORY is verdict(report=SURVIVED, log=b"GPUassert: out of memory kernel.cu 42").kind
    assert EndingKind.OUT_OF_MEMORY is verdict(report=DIED, log=KEY.encode()).kind


def test_pinned_host_memory_is_no_out_of_memory() -> None:
    """A larger request would not help, and the next job must not learn from it."""
    frames = '  File "torch/utils/data/_utils/pin_memory.py", line 98, in pin_memory\n    return data.pin_memory()\n'
    log = f"Traceback (most recent call last):\n{frames}RuntimeError: CUDA error: out of memory\n"

    assert FAILED == verdict(log=log.encode())


def test_an_unknown_peak_is_left_out() -> None:
    """An unknown peak is omitted, and is never shown as 0."""
    assert "asked 512M" == judged(FAILED, DIED, b"", asked_bytes=512 * MIB, peak_bytes=None).detail


@pytest.mark.parametrize("ending", [FAILED, Ending.stopped(EndingKind.OUT_OF_MEMORY, -9)])
def test_the_circumstances_stand_behind_the_figures(ending: Ending) -> None:
    """The circumstances follow the figures, for a run that failed and for a run that the watchdog ended.

    Other endings have none.
    """
    words = "120M were free; no other process was on the device"

    reported = judged(ending, DIED, b"", asked_bytes=6 * GIB, peak_bytes=3 * GIB, circumstances=words)

    assert f"asked 6G, peak 3G, {words}" == reported.detail
    assert "" == judged(FAILED, None, b"", asked_bytes=GIB, peak_bytes=None, circumstances=words).detail


def test_only_the_end_of_a_log_is_read(tmp_path: Path) -> None:
    """Only the end of a log is read.

    An error that the job survived long ago is not the cause. A log may be huge or missing.
    """
    log = tmp_path / "log"
    assert b"" == tail(log)
    log.write_bytes(b"short")
    assert b"short" == tail(log)
    log.write_bytes(b"CUDA out of memory\n" + b"." * TAIL_BYTES)
    assert b"." * TAIL_BYTES == tail(log)


def test_an_unkillable_process_is_named_beside_the_figures() -> None:
    """The watchdog's ending has the figures as its detail, and what the shim has added stays."""
    ending = Ending.stopped(EndingKind.OUT_OF_MEMORY, None, "unkillable: 7")

    assert "asked 1G; unkillable: 7" == judged(ending, None, b"", asked_bytes=GIB, peak_bytes=None).detail


SUCCEEDED = Ending.from_status(0)
TRACEBACK = """Traceback (most recent call last):
  File "train.py", line 3, in <module>
    main()
    ~~~~^^
"""
TORCHRUN = f"""[rank0]: Traceback (most recent call last):
[rank0]:   File "train.py", line 3, in <module>
[rank0]: ValueError: bad
E1129 12:00:00 api.py:869] failed (exitcode: 1) local_rank: 0 (pid: 17)
{TRACEBACK}torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  rank      : 0 (local_rank: 0)
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""


@pytest.mark.parametrize(
    ("log", "error"),
    [
        (
            f"epoch 1\n{TRACEBACK}RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB.\n",
            "RuntimeError: CUDA out",
        ),
        (f"{TRACEBACK}KeyError: 'lr'\n", "KeyError: 'lr'"),
        (f"{TRACEBACK}KeyboardInterrupt\n", "KeyboardInterrupt"),
        (f" 12%|#2 | 12/100 [00:01<00:09]{TRACEBACK}my.own.Failure: x\r\n", "my.own.Failure: x"),
        (f"{TRACEBACK}ValueError: x\nnext try\n{TRACEBACK}OSError: y\ndone\n", "OSError: y"),
        (
            f"{TRACEBACK}RuntimeError: CUDA error: device-side assert\nCUDA kernel\nFor debugging\nCompile",
            "RuntimeError:",
        ),
        (f"Process SpawnProcess-1:\n{TRACEBACK}ValueError: x\nfinished at 12:00\n", "ValueError: x"),
        (f"\x1b[35m{TRACEBACK}\x1b[0m\x1b[1;35mValueError\x1b[0m: \x1b[35mbad\x1b[0m\n", "ValueError: bad"),
        ("╭── Traceback (most recent call last) ──╮\n│ train.py:3 │\n╰──╯\nValueError: bad\n", "ValueError: bad"),
        ('  File "train.py", line 3\n    def (\n        ^\nSyntaxError: invalid syntax\n', "SyntaxError: invalid"),
        (TORCHRUN, "torch.distributed.elastic.multiprocessing.errors.ChildFailedError"),
        ("terminate called\n  what():  CUDA out of memory. Tried to allocate\n", "what():  CUDA out of memory"),
        (f"{TRACEBACK}ValueError: x\nException ignored in: <function f>\n{TRACEBACK}TypeError: y\n", "ValueError: x"),
        ("train.sh: line 2: 10658 Segmentation fault      (core dumped) python train.py\ndone\n", "train.sh: line 2"),
        ("/a b/train.sh: line 3: 10699 Killed                  python train.py\ndone\n", "/a b/train.sh: line 3"),
        ("Segmentation fault\ndone\n", "Segmentation fault"),
        ("/tmp/train.sh: line 1: pythn: command not found\ndone\n", "/tmp/train.sh: line 1: pythn"),
        ("train.sh: 4: ./train: not found\n", "train.sh: 4"),
        ("train.sh: line 1: cd: /data: No such file or directory\n", "train.sh: line 1: cd"),
        ("train.sh:1: command not found: pythn\ndone\n", "train.sh:1: command not found"),
        ("python: can't open file '/home/ann/trian.py': [Errno 2] No such file or directory\n", "python: can't open"),
        (f"{TRACEBACK}ValueError: x\ngpuqueue: a\ngpuqueue: b\ngpuqueue: c\ngpuqueue: d\n", "ValueError: x"),
    ],
)
def test_a_success_whose_log_ends_with_an_error_hides_a_failure(log: str, error: str) -> None:
    """The note quotes the error; what a script or torchrun prints after it does not hide it."""
    note = hidden_failure(SUCCEEDED, None, [b"", log.encode()])

    assert note is not None
    assert ("hidden_failure", 1, True) == (note.kind, note.count, note.items[0].startswith(error))
    assert len(note.items[0]) <= MAX_ERROR


@pytest.mark.parametrize(
    ("ending", "report", "log"),
    [
        (SUCCEEDED, None, ""),
        (SUCCEEDED, None, "epoch 1\nepoch 2\n"),
        (SUCCEEDED, SURVIVED, "CUDA out of memory, batch 8 now\nepoch 1\nepoch 2\nepoch 3\nsaved\n"),
        (SUCCEEDED, None, f"{TRACEBACK}ValueError: no upload\nepoch 1\nepoch 2\nepoch 3\nsaved\n"),
        (SUCCEEDED, None, f"saved\nException ignored in: <function f>\n{TRACEBACK}TypeError: 'NoneType'\n"),
        (SUCCEEDED, None, f"saved\nError in atexit._run_exitfuncs:\n{TRACEBACK}TypeError: 'NoneType'\n"),
        (SUCCEEDED, None, "  File not found\nnone\n"),
        (SUCCEEDED, None, "12:01: cache not found\nKilled 3 old jobs\nNo such file or directory\n"),
        (SUCCEEDED, None, "CUDA out of memory\n" + "  1\n" * 100),
        (FAILED, DIED, f"{TRACEBACK}ValueError: x\n"),
        (Ending.stopped(EndingKind.TIMED_OUT, 0), DIED, f"{TRACEBACK}ValueError: x\n"),
        (Ending.stopped(EndingKind.CANCELLED, 0), None, f"{TRACEBACK}ValueError: x\n"),
    ],
)
def test_an_error_that_a_program_survived_is_none(ending: Ending, report: InsideReport | None, log: str) -> None:
    """A program that goes on after an error has handled it. Other endings say themselves what happened."""
    assert None is hidden_failure(ending, report, [log.encode()])


@pytest.mark.parametrize(
    ("message", "items"), [("CUDA out of memory. Tried\x1b[2J", ("CUDA out of memory. Tried�[2J",)), ("", ())]
)
def test_a_process_that_died_of_it_needs_no_log_either(message: str, items: tuple[str, ...]) -> None:
    """``python train.py > train.log 2>&1; echo done`` leaves no error in the log of the run."""
    note = hidden_failure(SUCCEEDED, InsideReport(out_of_memory=True, message=message), [b"done\n"])

    assert note is not None
    assert items == note.items


@pytest.mark.parametrize(
    ("ending", "log", "helps"),
    [
        (FAILED, b"OSError: [Errno 98] Address already in use\nOSError: [Errno 98] Address already in use\n", True),
        (FAILED, b"DistNetworkError: ... port: 29500, useIpv6: false, code: -98, name: EADDRINUSE", True),
        (FAILED, b"[::]:29500 (errno: 98 - Address already in use). The server socket has failed to listen", True),
        (FAILED, b"distributed communication on port `29500`, but another process is utilizing it.", True),
        (Ending.from_status(-6), b"NCCL WARN Call to bind failed : Address already in use", True),
        (Ending.stopped(EndingKind.TIMED_OUT, -15), b"EADDRINUSE", True),
        (Ending.from_status(0), b"Address already in use, trying the next port", False),
        (Ending.stopped(EndingKind.CANCELLED, -15), b"Address already in use, trying the next port", False),
        (FAILED, b"ConnectionRefusedError: [Errno 111] Connection refused", False),
    ],
)
def test_a_run_whose_port_another_process_had_gets_one_hint(ending: Ending, log: bytes, *, helps: bool) -> None:
    """Launchers of training take the same port by default, so a second run on the host fails."""
    notes = [note.words for note in hints(ending, log)]

    assert helps is bool(notes)
    assert not notes or "take $MASTER_PORT, which is free for each run" in notes[0]


@pytest.mark.parametrize(
    ("log", "helps"),
    [
        (b"/home/ann/job.sh: line 5: module: command not found", True),
        (b"job.sh: 5: module: not found", True),
        (b"job.sh: line 5: ml: command not found", True),
        (b"job.sh:5: command not found: conda", True),
        (b"/var/lib/job.sh: line 4: conda: command not found", True),
        (b"CondaError: Run 'conda init' before 'conda activate'", True),
        (b"Your shell has not been properly configured to use 'conda activate'.", True),
        (b"job.sh: line 3: activate: No such file or directory", True),
        (b"job.sh: line 3: /opt/conda/bin/activate: No such file or directory", True),
        (b"job.sh: line 3: /opt/conda/etc/profile.d/conda.sh: No such file or directory", True),
        (b"job.sh: 3: .: activate: not found", True),
        (b"job.sh: line 5: html: command not found", False),
        (b"ModuleNotFoundError: No module named 'torch'", False),
        (b"the module: not found in the registry", False),
    ],
)
def test_a_run_whose_environment_was_not_loaded_gets_one_hint(log: bytes, *, helps: bool) -> None:
    """Job files of a cluster load modules, and activate environments of conda."""
    notes = [note.words for note in hints(FAILED, log + b"\n" + log + b"\n")]

    assert helps is bool(notes)
    assert not notes or [True] == ["the job has your environment" in words for words in notes]
    assert [] == list(hints(Ending.from_status(0), log))


@pytest.mark.parametrize(
    ("ending", "literal", "helps"),
    [
        (FAILED, b"'GPU-5a1c'", True),
        (FAILED, b"'sim-nodeA-0'", True),
        (FAILED, b"'GPU-5a1c,GPU-77d0'", True),
        (FAILED, b"b' GPU-5a1c'", True),
        (Ending.stopped(EndingKind.TIMED_OUT, -15), b"'GPU-5a1c'", True),
        (FAILED, b"'MIG-5a1c'", False),
        (FAILED, b"''", False),
        (FAILED, b"'batch'", False),
        (Ending.from_status(0), b"'GPU-5a1c'", False),
    ],
)
def test_a_run_that_reads_a_uuid_as_a_number_gets_one_hint(ending: Ending, literal: bytes, *, helps: bool) -> None:
    """A MIG instance keeps its UUID in any case, so the option would not help."""
    line = b"ValueError: invalid literal for int() with base 10: " + literal + b"\n"

    notes = [note.words for note in hints(ending, line * 2)]

    assert helps is bool(notes)
    assert not notes or [True] == ["submit it with --visible index" in words for words in notes]
