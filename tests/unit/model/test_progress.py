from __future__ import annotations

import io
import re

import pytest
from tqdm import tqdm  # type: ignore[import-untyped]

from gpuqueue.model.progress import Progress, progress_in


def test_the_real_tqdm_is_read() -> None:
    """The output of the real tqdm is read."""
    log = io.StringIO()
    bar = tqdm(total=200, file=log, mininterval=0, desc="train", postfix="loss=0.3")
    for _ in range(50):
        bar.update()

    found = progress_in(log.getvalue().encode())

    bar.close()
    assert found is not None
    assert found.share == 0.25
    assert re.fullmatch(r"50/200, [\d:]+ left", found.words)


def test_the_real_tqdm_with_scaled_units_is_read() -> None:
    """Counts with units are read, as in a download in MB."""
    log = io.StringIO()
    bar = tqdm(total=4_000_000, unit="B", unit_scale=True, file=log, mininterval=0)
    bar.update(1_000_000)

    found = progress_in(log.getvalue().encode())

    bar.close()
    assert found is not None
    assert found == Progress(share=0.25, words=found.words)
    assert found.words.startswith("1.00M/4.00M")


@pytest.mark.parametrize(
    ("tail", "share"),
    [
        (b"epoch 3/10 loss 0.1\n", 0.3),
        (b"Epoch [5/20], Step [10/40]\n", 0.25),
        (b"Iteration 10 of 40\n", 0.25),
        (b"12/100 [==>.......] - ETA: 3s\n", 0.12),
        ("25/100 ━━━━━─────────────── 3s 35ms/step".encode(), 0.25),
        (b" 10%|#         | 1/10 [00:01<00:09]\r 20%|##        | 2/10 [00:02<00:08]", 0.2),
        (b"\x1b[32m 50%|#####     | 5/10\x1b[0m", 0.5),
        ("epoch 2/2 ━━━━━╸━━━━━━━━━━━━━━ 10/40 0:00:05 • 0:00:15 2.00it/s".encode(), 0.25),
        ("epoch 1/2 \x1b[38;5;197m━━━━━━\x1b[0m\x1b[90m━━━━━━\x1b[0m  50% 0:00:02".encode(), 0.5),
        (b"epoch 1/4\nsaved checkpoint to /a/b 2024/11/21\n", 0.25),
    ],
)
def test_what_programs_write_is_read(tail: bytes, share: float) -> None:
    """The last line that contains progress counts, even if other lines follow."""
    found = progress_in(tail)
    assert found is not None
    assert found.share == share


@pytest.mark.parametrize(
    "tail",
    [
        b"",
        b"\n\r\n",
        b"2024/11/21 done\n",
        b"loss 1/3\n",
        b"epoch 5/0\n",
        b"epoch 12/10\n",
        b"999%|#|",
        b"\xff\xfe%|",
        b"a/b/c 3/4\n",
    ],
)
def test_what_is_no_progress_is_none(tail: bytes) -> None:
    """A date, a ratio and a count above its total are no progress. No progress is better than wrong progress."""
    assert progress_in(tail) is None


BAR = " {percent}%|####      | {percent}/100 [00:12<00:15,  3.6it/s]"


@pytest.mark.parametrize(
    ("log", "share"),
    [
        (BAR.format(percent=100), 1.0),
        (BAR.format(percent=100) + "\nsaving the model\n", None),
        (BAR.format(percent=45) + "\nval loss 0.3\n", 0.45),
        (BAR.format(percent=45) + "\nout of the loop\n" * 21, None),
        (BAR.format(percent=100) + "\nvalidating\n" + BAR.format(percent=7), 0.07),
        ("epoch 3/10\n" + BAR.format(percent=100) + "\nval loss 0.3\n", 0.3),
        (BAR.format(percent=45) + "\n" + BAR.format(percent=100) + "\nsaving\n", None),
        ("100/100 ━━━━━━━━━━ 3s 35ms/step\nsaving\n", None),
        ("epoch 3/10\n" + "loss 0.1\n" * 50, 0.3),
        ("epoch 2/2 ━━━━━━━━━━ 40/40 0:00:05\nsaving\n", None),
        ("epoch 1/2 ━━━━━━━━━━ 40/40 0:00:05\nval loss 0.3\n", 0.5),
        ("epoch 2/2: " + BAR.format(percent=100) + "\nsaving\n", None),
    ],
)
def test_a_bar_holds_for_as_long_as_its_work_goes_on(log: str, share: float | None) -> None:
    """A bar is dropped when its work is over.

    Regression: a job that saved its model for an hour stayed at 100 %, and a job that had left a loop stayed at 45 %.
    Beside its bar, epoch 2 of 2 has begun, and is not 100 %.
    """
    found = progress_in(log.encode())
    assert share == (found.share if found is not None else None)


def test_an_endless_line_is_no_trap() -> None:
    """A very long line is read quickly, as at the end of a binary file."""
    assert progress_in(b"1/" * 4096) is None
    assert progress_in(b"[" * 8192) is None
    assert progress_in(b"\x1b[" * 4096) is None
    assert progress_in("━".encode() * 2730) is None
