"""Records the output of real training programs, for the tests of the reader of progress.

Each writes three epochs, into a pipe and on a terminal. ``python record.py PROGRAM`` needs the library of the program:
tqdm, torch with pytorch-lightning, keras, transformers with accelerate, or rich. The files hold what was written.
"""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

HERE = Path(__file__).parent

NESTED = """
from tqdm import tqdm, trange
import time
for epoch in trange(3, mininterval=0):
    for step in tqdm(range(20), leave=False, mininterval=0):
        time.sleep(0.01)
"""

LABELS = """
from tqdm import tqdm
import time
for epoch in range(3):
    bar = tqdm(range(20), desc=f"Epoch {epoch + 1}/3", mininterval=0)
    for step in bar:
        bar.set_postfix(loss=1 / (step + 1))
        time.sleep(0.01)
    for step in tqdm(range(5), desc="val", mininterval=0):
        time.sleep(0.01)
    print(f"epoch {epoch} loss {1 / (epoch + 1):.3f}", flush=True)
"""

LIGHTNING = """
import torch, pytorch_lightning as pl
from torch.utils.data import DataLoader, TensorDataset

class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, _):
        return self.layer(batch[0]).mean()
    def validation_step(self, batch, _):
        self.log("val_loss", self.layer(batch[0]).mean(), prog_bar=True)
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

data = DataLoader(TensorDataset(torch.randn(80, 4)), batch_size=4)
few = DataLoader(TensorDataset(torch.randn(20, 4)), batch_size=4)
trainer = pl.Trainer(max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False)
trainer.fit(Net(), data, few)
"""

KERAS = """
import os
os.environ["KERAS_BACKEND"] = "torch"
import keras, numpy
model = keras.Sequential([keras.layers.Dense(1)])
model.compile(optimizer="sgd", loss="mse")
x, y = numpy.random.rand(80, 4), numpy.random.rand(80, 1)
model.fit(x, y, epochs=3, batch_size=4, validation_data=(x[:20], y[:20]))
"""

TRAINER = """
import torch
from transformers import Trainer, TrainingArguments

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def forward(self, x, labels=None):
        out = self.layer(x)
        return {"loss": ((out - labels) ** 2).mean(), "logits": out}

data = [{"x": torch.randn(4), "labels": torch.randn(1)} for _ in range(80)]
arguments = TrainingArguments(
    output_dir="unused", num_train_epochs=3, per_device_train_batch_size=4, logging_steps=5,
    eval_strategy="epoch", save_strategy="no", report_to=[], use_cpu=True,
)
Trainer(Net(), arguments, train_dataset=data, eval_dataset=data[:20]).train()
"""

RICH = """
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
import time
columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
for epoch in range(1, 4):
    with Progress(*columns, refresh_per_second=50) as progress:
        for step in progress.track(range(20), description=f"epoch {epoch}/3"):
            time.sleep(0.01)
"""

PROGRAMS = {
    "nested": NESTED, "labels": LABELS, "lightning": LIGHTNING, "keras": KERAS, "trainer": TRAINER, "rich": RICH,
}  # fmt: skip


def piped(script: str) -> bytes:
    """Return what *script* writes into a pipe."""
    return subprocess.run([sys.executable, "-c", script], stdout=-1, stderr=-2, check=True).stdout


def on_terminal(script: str) -> bytes:
    """Return what *script* writes on a terminal of 100 columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    environ = {**os.environ, "TERM": "xterm"}
    process = subprocess.Popen([sys.executable, "-c", script], stdout=theirs, stderr=theirs, env=environ)
    os.close(theirs)
    written = b""
    try:
        while part := os.read(ours, 65536):
            written += part
    except OSError:  # all that had the terminal have ended
        pass
    if process.wait():
        raise SystemExit(written.decode(errors="replace"))
    return written


if __name__ == "__main__":
    for name in sys.argv[1:] or PROGRAMS:
        (HERE / f"{name}.pipe").write_bytes(piped(PROGRAMS[name]))
        (HERE / f"{name}.terminal").write_bytes(on_terminal(PROGRAMS[name]))
