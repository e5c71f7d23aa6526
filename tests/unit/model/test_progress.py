"""Tests of the progress of a run, read from its output."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tqdm import tqdm  # type: ignore[import-untyped]

from gpuqueue.codec.wire import from_plain, to_stored
from gpuqueue.errors import Unreadable
from gpuqueue.model.progress import MAX_SHARE, Progress
from gpuqueue.model.progress_reader import ProgressReader, progress_of, steps_in

BAR = "{label}{percent:3d}%|####      | {percent}/100 [00:12<00:15,  3.6it/s]"


def bar(percent: int, label: str = "") -> str:
    """Return a bar of tqdm, as it is redrawn."""
    return "\r" + BAR.format(percent=percent, label=label and f"{label}: ")


def read(
    parts: Iterable[str], *, each_s: float = 1.0, declared: str = "", unsure: bool = True
) -> list[Progress | None]:
    """Return the progress after each of *parts* of an output, which follow each other in *each_s* seconds.

    *unsure*: also of a bar that may be that of the first epoch.
    """
    reader, found = ProgressReader(), []
    reader.declare(declared)
    for number, part in enumerate(parts, 1):
        reader.feed(part.encode(), number * each_s)
        reader.feed(b"", number * each_s)
        reading = reader.reading(number * each_s)
        found.append(reading.progress if reading is not None and (unsure or reading.is_sure) else None)
    return found


def at_end(log: str) -> Progress | None:
    """Return what a whole *log* shows, also a bar that may be that of the first epoch."""
    return read([log])[-1]


def shares(parts: Iterable[str], *, declared: str = "", unsure: bool = True) -> list[float | None]:
    """Return the shares that are read after each of *parts*, to the per mille. *unsure* is that of :func:`read`."""
    found = read(parts, declared=declared, unsure=unsure)
    return [None if each is None else round(each.share, 3) for each in found]


def test_the_real_tqdm_is_read() -> None:
    """A single bar shows what it counts."""
    log = io.StringIO()
    shown = tqdm(total=200, file=log, mininterval=0, desc="train", postfix="loss=0.3")
    for _ in range(50):
        shown.update()

    assert at_end(log.getvalue()) == Progress(share=0.25, counts="50/200")
    shown.close()


def test_the_real_tqdm_with_scaled_units_is_read() -> None:
    """Counts with units are read, as in a download in MB."""
    log = io.StringIO()
    shown = tqdm(total=4_000_000, unit="B", unit_scale=True, file=log, mininterval=0)
    shown.update(1_000_000)

    assert at_end(log.getvalue()) == Progress(share=0.25, counts="1.00M/4.00M")
    shown.close()


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("epoch 3/10 loss 0.1\n", "epoch 3/10, 20 %"),
        ("Epoch 3/10\n", "epoch 3/10, 20 %"),
        ("epoch  10/ 29 loss 0.1\n", "epoch 10/29, 31 %"),
        ("Epoch [5/20], Step [10/40], Loss: 0.3\n", "epoch 5/20, 21 %"),
        ("epoch 3/20 step 100/500\n", "epoch 3/20, 11 %"),
        ("epochs=40\n| epoch   3 |   200/ 2000 batches | lr 5.00\n", "epoch 3/40, 5 %"),
        ("Namespace(epochs=10)\nTrain Epoch: 3 [30000/60000 (50%)]\tLoss: 0.3\n", "epoch 3/10, 25 %"),
        ("epochs: 90\nEpoch: [0][1000/5000]\tTime 0.1\n", "epoch 1/90, 0 %"),
        ("Iteration 10 of 40\n", "iteration 10/40, 25 %"),
        ("Fold 2/5\nEpoch 3/10\n", "fold 2/5, 24 %"),
        ("12/100 [==>.......] - ETA: 3s\n", "12/100, 12 %"),
        ("25/100 ━━━━━─────────────── 3s 35ms/step", "25/100, 25 %"),
        (" 10%|#         | 1/10 [00:01<00:09]\r 20%|##        | 2/10 [00:02<00:08]", "2/10, 20 %"),
        ("\x1b[32m 50%|#####     | 5/10\x1b[0m", "5/10, 50 %"),
        ("epoch 2/2 ━━━━━╸━━━━━━━━━━━━━━ 10/40 0:00:05 • 0:00:15 2.00it/s", "epoch 2/2, 62 %"),
        ("epoch 2/2 ━━━━━━━━━━━━━━━━━━━━ 40/40 0:00:05 • 0:00:15 2.00it/s", "epoch 2/2, 99 %"),
        ("epoch 1/2 \x1b[38;5;197m━━━━━━\x1b[0m\x1b[90m━━━━━━\x1b[0m  50% 0:00:02", "epoch 1/2, 25 %"),
        ("epoch 2/4 loss 0.1\nsaved checkpoint to /a/b 2024/11/21\n", "epoch 2/4, 25 %"),
        ("      3/100      2.1G      1.23:  50%|#####     | 50/100 [00:01<00:01]", "epoch 3/100, 2 %"),
    ],
)
def test_what_programs_write_is_read(log: str, words: str) -> None:
    """Epochs and the steps within them are read together."""
    found = at_end(log)
    assert found is not None
    assert words == found.words


@pytest.mark.parametrize(
    "log",
    [
        "",
        "\n\r\n",
        "2024/11/21 done\n",
        "loss 1/3\n",
        "epoch 5/0\n",
        "epoch 12/10\n",
        "999%|#|",
        "\xff\xfe%|",
        "a/b/c 3/4\n",
        "Train Epoch: 3 [25600/60000 (43%)]\tLoss: 0.3\n",
        "Epoch 3: " + BAR.format(percent=45, label=""),
        "best epoch 3/10 loss 0.1\n",
        "warmup_epochs=3\nepoch 2\n",
        BAR.format(percent=45, label="Validation DataLoader 0: "),
    ],
)
def test_what_is_no_progress_is_none(log: str) -> None:
    """A date, a ratio, an epoch of an unknown number of epochs and a validation are no progress of the job."""
    assert progress_of(log.encode()) is None


def test_a_bar_of_each_epoch_is_no_progress_of_the_job() -> None:
    """Regression: a job in epoch 1 of 90 showed 98 %. A bar that began anew is a part of the work, of unknown size."""
    epoch = [bar(percent) for percent in range(0, 100, 10)]
    assert [None] * 10 == shares([*epoch, *epoch])[-10:]


def test_epochs_are_known_before_their_first_end() -> None:
    """The number of epochs may stand in the arguments: then a bar with the number of its epoch is enough."""
    parts = [bar(percent, f"Epoch {epoch}") for epoch in range(2) for percent in (0, 50)]
    assert [0, 0.25, 0.5, 0.75] == shares(parts, declared="train.py --max_epochs 2")
    assert [None] * 4 == shares(parts)


def test_epochs_that_count_from_zero_end_at_the_end() -> None:
    """Lightning has the number of the last epoch beside the present one: ``Epoch 0/1``."""
    parts = [bar(percent, f"Epoch {epoch}/1") for epoch in range(2) for percent in (0, 50)]
    assert [0, 0.25, 0.5, 0.75] == shares(parts)
    assert "epoch 2/2" == (read(parts)[-1] or Progress(share=0)).counts


def test_a_validation_within_an_epoch_changes_nothing() -> None:
    """Neither one with its name nor one without."""
    for name in ("val", ""):
        parts = [bar(50, "epoch 1/4"), bar(100, "epoch 1/4"), "\n", bar(10, name), bar(90, name), bar(0, "epoch 2/4")]
        assert [0.125, 0.25, 0.25, 0.25, 0.25, 0.25] == shares(parts)


def test_the_steps_of_an_outer_bar_are_counted_to_the_inner_step() -> None:
    """A bar over the epochs and one of each epoch, which disappears, as of two nested ``tqdm``."""
    outer = "\r 25%|##5       | 1/4 [00:12<00:15]\n"
    inner = [f"\r{percent:3d}%|####      | {percent}/100 [00:12<00:15]\x1b[A" for percent in (0, 50, 90)]
    assert [0.25, 0.25, 0.375, 0.475] == shares([outer, *inner])
    after = "\r 50%|##5       | 2/4 [00:12<00:15]\n"
    assert [0.5, 0.5, 0.625] == shares([outer, *inner, after, *inner[:2]])[-3:]


def test_printed_epochs_are_over_where_values_stand_beside_them_behind_a_full_bar() -> None:
    """A line at the end of each epoch, and a bar without a name in each."""
    parts = [
        "loading\n",
        bar(10),
        bar(100) + "\n",
        "epoch 1/4 loss 0.3\n",
        bar(0),
        bar(50),
        bar(100) + "\n",
        "epoch 2/4 loss 0.2\n",
    ]
    assert [0.25, 0.25, 0.375, 0.5, 0.5] == shares(parts)[3:]


@pytest.mark.parametrize("values", ["", " lr 0.001", " loss 0.3", ", best acc 0.5", " batch 1 loss 0.4"])
@pytest.mark.parametrize("bars", [[], [bar(0), bar(50), bar(100) + "\n"]], ids=["alone", "bars"])
def test_an_epoch_that_may_have_just_begun_does_not_count(values: str, bars: list[str]) -> None:
    """Regression: lines at the beginning of each epoch were read as those of its end, one epoch too much."""
    parts = [part for epoch in (1, 2, 3) for part in (f"epoch {epoch}/20{values}\n", *bars)]
    assert 0.1 == shares(parts)[-1 - len(bars)]


def test_the_lines_of_keras_are_read() -> None:
    """The number of the epoch on a line of its own, then a bar that is redrawn by backspaces."""
    bars = [
        f"\b\b\r\x1b[1m{done}/100\x1b[0m \x1b[32m━━━━\x1b[0m\x1b[37m━━━━━━\x1b[0m \x1b[1m3s\x1b[0m 35ms/step"
        for done in (1, 50)
    ]
    assert [0.5, 0.505, 0.75] == shares(["Epoch 2/2\n", *bars])


def test_the_bar_of_a_trainer_is_the_whole_beside_its_evaluations() -> None:
    """One bar over all steps, values as dictionaries, and a bar of each evaluation, which begins anew."""
    values = "{'loss': 0.5, 'epoch': 0.5}\n"
    evaluation = "\n\r 50%|#####     | 5/10 [00:01<00:01]\x1b[A"
    parts = [bar(10), values, bar(50), evaluation, bar(51), evaluation, values, bar(60)]
    assert [0.1, 0.1, 0.5, 0.505, 0.51, 0.515, 0.515, 0.6] == shares(parts)
    whole = [*parts, "{'loss': 0.4, 'epoch': '2'}\n", bar(70), "{'loss': 0.4, 'epoch': 2.75}\n", bar(90)]
    assert [0.6, 0.7, 0.7, 0.9] == shares(whole, declared="--num_train_epochs 3")[-4:]


@pytest.mark.parametrize(
    ("parts", "share"),
    [
        ([bar(100)], MAX_SHARE),
        ([bar(100) + "\nsaving the model\n"], None),
        ([bar(45) + "\nval loss 0.3\n"], 0.45),
        ([bar(45) + "\n", *["out of the loop\n"] * 70], None),
        ([bar(45) + "\n" + "step\n" * 70], 0.45),
        (["epoch 3/10 loss 0.1\n" + "loss 0.1\n" * 90], 0.2),
        (["epoch 1/2 ━━━━━━━━━━ 40/40 0:00:05\nval loss 0.3\n"], 0.5),
        (["hello\n", "hello\n", "hello\n", bar(45)], None),
        (["hello\n", "hello\n", "hello\n", bar(45), bar(46), bar(47)], 0.47),
    ],
)
def test_a_bar_holds_for_as_long_as_its_work_goes_on(parts: Sequence[str], share: float | None) -> None:
    """A bar is dropped when its work is over, and counts once it covers half of the run.

    Regression: a job that saved its model for an hour stayed at 100 %, and a job that had left a loop stayed at 45 %.
    """
    assert share == shares(parts)[-1]


def test_epochs_within_folds_are_parts() -> None:
    """Epochs that begin anew are no whole; with the number of the fold they count within it."""
    epochs = [f"epoch {number}/3 loss 0.1\n" for number in (1, 2, 3)]
    assert None is shares([*epochs, *epochs])[-1]
    found = shares(["fold 1/2\n", *epochs, "fold 2/2\n", *epochs])
    assert [0, 0, 0.167, 0.333, 0.5, 0.5, 0.667, 0.833] == found


def test_a_rank_that_is_behind_changes_nothing() -> None:
    """Each rank of a job may write its own lines."""
    parts = ["epoch 2/9 step 5/10\n", "epoch 3/9 step 1/10\n", "epoch 2/9 step 9/10\n", "epoch 3/9 step 2/10\n"]
    assert [0.167, 0.233, 0.233, 0.244] == shares(parts)


def test_the_time_left_follows_from_the_newer_half() -> None:
    """The first epoch took ten times as long as the others, and counts no more after a while."""
    reader, now_s = ProgressReader(), 0.0
    for epoch in range(1, 11):
        now_s += 1000 if epoch == 1 else 100
        reader.feed(f"epoch {epoch}/20 loss 0.1\n".encode(), now_s)
    found = reader.progress(now_s)

    assert found is not None
    assert "epoch 10/20, 45 %, 18:20 left" == found.words
    assert 1050 == (reader.progress(now_s + 50) or found).left_s, "it falls until the next step is due"
    assert 1000 == (reader.progress(now_s + 5000) or found).left_s, "and a run that hangs comes no nearer to its end"


def test_there_is_no_time_left_before_there_is_a_pace() -> None:
    """Below one per cent, and within ten seconds, the start of the program counts for too much."""
    found = read([f"step {number}/1000\n" for number in range(1, 60)])
    lefts = [None if each is None else each.left_s for each in found]
    assert [None] * 11 == lefts[:11]
    assert None is not lefts[30]
    assert 941 == round(lefts[-1] or 0)


def test_a_worker_that_adopts_the_run_goes_on() -> None:
    """What was kept is all that counts: parts stay parts, and the pace stays known."""
    reader = ProgressReader()
    for number in range(1, 100):
        reader.feed(f"step {number}/200\n".encode(), float(number))
    kept = json.loads(json.dumps(to_stored(reader)))

    assert from_plain(ProgressReader, kept) == reader
    assert from_plain(ProgressReader, kept).progress(100.0) == reader.progress(100.0)


@pytest.mark.parametrize(
    "change",
    [
        lambda plain: plain.update(counters=3),
        lambda plain: plain.update(whole="x"),
        lambda plain: plain.update(points=[[1.0]]),
        lambda plain: plain["counters"].update(x={}),
        lambda plain: plain["counters"]["step 9"].update(total=0),
    ],
)
def test_what_is_damaged_is_not_taken_over(change: Callable[[dict[str, object]], None]) -> None:
    """A job may have written to the file."""
    reader = ProgressReader()
    reader.feed(b"step 3/9\n", 1.0)
    plain = json.loads(json.dumps(to_stored(reader)))
    change(plain)

    with pytest.raises(Unreadable):
        from_plain(ProgressReader, plain)


#: What real programs have written, each in three epochs (tests/golden/outputs/record.py).
OUTPUTS = sorted((Path(__file__).parents[2] / "golden" / "outputs").glob("*.[pt][ie]*"))
#: The number of epochs is in the arguments of these jobs only.
ARGUMENTS = {"lightning": "train.py --max_epochs 3", "trainer": "train.py --num_train_epochs 3"}


@pytest.mark.parametrize("pieces", [10, 100])
@pytest.mark.parametrize("output", OUTPUTS, ids=lambda path: path.name)
def test_the_output_of_real_programs_is_read(output: Path, pieces: int) -> None:
    """Into a pipe and on a terminal, progress rises steadily from nothing over three epochs with evaluations."""
    written = output.read_bytes()
    reader, found = ProgressReader(), []
    reader.declare(ARGUMENTS.get(output.stem, ""))
    for number in range(pieces):
        begin, end = (at * len(written) // pieces for at in (number, number + 1))
        reader.feed(written[begin:end], float(number))
        found.append((end / len(written), reader.progress(float(number))))
    reader.feed(b"", float(pieces))
    found.append((1.0, reader.progress(float(pieces))))

    known = [(at, each.share) for at, each in found if each is not None]
    shares = [share for _, share in known]
    assert sorted(shares) == shares
    assert MAX_SHARE == shares[-1]
    if output.name not in {"lightning.pipe", "rich.pipe"}:  # these have their bars at the end only
        assert len(known) >= 0.6 * len(found)
        assert all(abs(share - at) < 0.4 for at, share in known)


@st.composite
def trainings(draw: st.DrawFn) -> tuple[int, list[tuple[int, str]]]:
    """Return the number of epochs and the output of a training: the present epoch and a part, one after the other."""
    epochs, steps = draw(st.integers(1, 6)), draw(st.integers(2, 30))
    form = draw(st.sampled_from(["header", "label", "line"]))
    validates = draw(st.booleans())
    parts: list[tuple[int, str]] = []
    for epoch in range(1, epochs + 1):
        if form == "header":
            parts.append((epoch, f"Epoch {epoch}/{epochs}\n"))
        for step in sorted(draw(st.sets(st.integers(0, steps), min_size=1, max_size=8))):
            percent = 100 * step // steps
            drawn = f"\r{'' if form == 'header' else f'epoch {epoch}/{epochs}: '}{percent}%|##  | {step}/{steps} [0]"
            parts.append((epoch, f"epoch {epoch}/{epochs} step {step}/{steps}\n" if form == "line" else drawn))
        if validates:
            parts.extend((epoch, f"\n\r{percent}%|##  | {percent}/100 [0]\n") for percent in (10, 100))
        if draw(st.booleans()):
            parts.append((epoch, draw(st.sampled_from(["loss 0.3\n", "saved to /a/b\n", "\n", "accuracy 45/100\n"]))))
    return epochs, parts


@given(trainings(), st.integers(1, 5))
def test_progress_never_falls_and_never_runs_ahead(training: tuple[int, list[tuple[int, str]]], size: int) -> None:
    """It never falls, is never above the end of the present epoch, and never 100 %, in whatever pieces it is read."""
    epochs, parts = training
    reader, last = ProgressReader(), 0.0
    for at in range(0, len(parts), size):
        piece = parts[at : at + size]
        reader.feed("".join(text for _, text in piece).encode(), float(at))
        found = reader.progress(float(at))
        if found is None:
            continue
        assert last <= found.share <= min(MAX_SHARE, piece[-1][0] / epochs) + 1e-9
        last = found.share


@given(
    st.lists(st.binary(max_size=60) | st.sampled_from([b"epoch 3/4", b"45%|##| 9/20 [0]", b"\r", b"\n"]), max_size=30)
)
def test_any_output_is_read(pieces: list[bytes]) -> None:
    """Whatever a job writes, the share is from 0 to 0.99."""
    reader = ProgressReader()
    for number, piece in enumerate(pieces):
        reader.feed(piece, float(number), is_cut=number % 7 == 6)
        found = reader.progress(float(number))
        assert found is None or 0 <= found.share <= MAX_SHARE
    assert from_plain(ProgressReader, json.loads(json.dumps(to_stored(reader)))).whole == reader.whole


@pytest.mark.parametrize(
    "text", [b"1/" * 40_000, b"[" * 80_000, b"\x1b[" * 40_000, "━".encode() * 27_000, b"epoch " * 9000]
)
def test_an_endless_line_is_no_trap(text: bytes) -> None:
    """A very long line is read quickly, as at the end of a binary file."""
    assert progress_of(text) is None
    assert steps_in(text) is None


def test_a_bar_alone_is_not_sure_to_be_that_of_the_job() -> None:
    """Regression: a job in the first of 90 epochs showed 98 %. Nothing in its output told that from the whole."""
    for first in (bar(98), "98/100 ━━━━━━━━━━ 3s 35ms/step", "step 98/100\n", bar(98, "Map")):
        assert [None, None] == shares([first, first], unsure=False)
        assert progress_of(first.encode()) is None
        assert 0.98 == (at_end(first) or Progress(share=0)).share


@pytest.mark.parametrize(
    ("parts", "declared"),
    [
        ([bar(10), "{'loss': 0.5, 'epoch': 0.3}\n", bar(50), "{'loss': 0.4, 'epoch': 1.5}\n"], ""),
        ([bar(10), "\nepoch 3 loss 0.5\n", bar(50), "\nepoch 7 loss 0.4\n"], ""),
        ([bar(50)], "train.py --max_train_steps 100"),
        (["Total optimization steps = 100\n", bar(50)], ""),
        ([outer for step in (1, 2, 3) for outer in (f"\r 9%|#  | {step}/90\n", bar(0), bar(99))], ""),
    ],
)
def test_a_bar_is_sure_once_it_covers_more_than_an_epoch(parts: list[str], declared: str) -> None:
    """The epochs rise within it, the arguments name its steps, or it goes on by one for each bar within it."""
    assert None is not shares(parts, declared=declared, unsure=False)[-1]


@pytest.mark.parametrize(
    "parts",
    [
        [bar(10), "{'loss': 0.5, 'epoch': 0.1}\n", bar(50), "{'loss': 0.4, 'epoch': 0.5}\n", bar(90)],
        [bar(10), "\nbest epoch 3\n", "epoch 3 loss 0.5\n", bar(50), "\nepoch 3 loss 0.4\n"],
        [bar(50), "\r 0%|#  | 0/9", "\r 99%|#  | 8/9", bar(60), "\r 0%|#  | 0/9", bar(70), "\r 0%|#  | 0/9"],
        [bar(40) + "\n", *["\n".join(f"\r{at}%|#  | {at}/9 [0]" for at in (1, 5, 8)) + "\n"] * 5],
    ],
)
def test_a_bar_of_one_epoch_stays_unsure(parts: list[str]) -> None:
    """Neither the epochs in it, nor validations in it, nor bars behind one that was left show that it is the whole."""
    assert {None} == set(shares(parts, unsure=False))


def test_what_was_shown_never_falls() -> None:
    """If what was shown turns out to be a part, nothing is shown until more is done than that."""
    sure = [bar(10), "epoch 1 loss 1\n", bar(30), "epoch 2 loss 1\n", bar(60)]
    later = [bar(0), *(f"epoch {epoch}/10 loss 0.1\n" for epoch in (4, 6, 7, 8))]
    assert [0.3, 0.6, None, None, None, 0.6, 0.7] == shares([*sure, *later], unsure=False)[-7:]


@pytest.mark.parametrize("program", ["trainer", "nested", "keras", "labels", "lightning"])
@pytest.mark.parametrize("into", ["pipe", "terminal"])
def test_real_programs_are_read_without_their_arguments(program: str, into: str) -> None:
    """What is shown rises to the end, and is never far above what is done."""
    written = (Path(__file__).parents[2] / "golden" / "outputs" / f"{program}.{into}").read_bytes()
    reader, found = ProgressReader(), []
    for at in range(0, len(written), 50):
        reader.feed(written[at : at + 50], at / 50)
        progress = reader.progress(at / 50)
        if progress is not None:
            found.append(progress.share)
            assert progress.share <= at / len(written) + 0.4
    assert sorted(found) == found
    assert MAX_SHARE == found[-1]
