"""Scripts for dry runs, as a user might have written them for a machine with a GPU."""

from __future__ import annotations

#: A small network in an endless loop; options choose the optimizer, its momentum and the batch size.
NETWORK = """
import argparse
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--optimizer", default="SGD")
parser.add_argument("--momentum", type=float)
parser.add_argument("--batch-size", type=int, default=8)
options = parser.parse_args()
device = torch.device("cuda")
net = nn.Sequential(nn.Linear(30, 170), nn.BatchNorm1d(170), nn.ReLU(), nn.Linear(170, 5)).to(device)
more = {} if options.momentum is None else {"momentum": options.momentum}
optimizer = getattr(torch.optim, options.optimizer)(net.parameters(), lr=0.1, **more)
while True:
    given, wanted = torch.randn(options.batch_size, 30).to(device), torch.zeros(options.batch_size, 5, device="cuda")
    optimizer.zero_grad()
    nn.functional.mse_loss(net(given), wanted).backward()
    optimizer.step()
"""
#: The count of that network's parameters, and the size of its buffers: two means and variances of 170, and a counter.
NETWORK_PARAMETERS = 30 * 170 + 170 + 170 + 170 + 170 * 5 + 5
NETWORK_BUFFER_BYTES = 2 * 170 * 4 + 8

#: Makes all calls that scripts make before they use a GPU, and uses the GPU's API besides tensors.
ASKS = """
import torch
from torch import nn

assert torch.cuda.is_available() and torch.cuda.device_count() == 1 and torch.cuda.current_device() == 0
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
assert (device.type, str(torch.device("cuda:0")), torch.device(0)) == ("cuda", "cuda:0", torch.device("cuda", 0))
torch.cuda.set_device(0); torch.cuda.manual_seed_all(1); torch.cuda.empty_cache(); torch.cuda.init()
torch.backends.cudnn.benchmark = True
assert torch.cuda.get_device_properties(0).total_memory > 2**30 and torch.cuda.get_device_name()
assert torch.cuda.get_device_capability() >= (8, 0) and torch.cuda.is_bf16_supported()

net = nn.LSTM(4, 4)
assert not next(net.parameters()).is_cuda
net.to(0)
net.cuda()
weight = next(net.parameters())
assert weight.is_cuda and not weight.is_cpu and weight.device == torch.device("cuda:0") and weight.get_device() == 0
assert isinstance(weight, nn.Parameter) and weight.is_leaf
host = torch.zeros(3)
assert not host.is_cuda and host.device.type == "cpu" and host.pin_memory().cuda(non_blocking=True).is_cuda
assert torch.zeros_like(weight).is_cuda and weight.cpu().device.type == "cpu" and weight.new_zeros(2).is_cuda
assert torch.zeros(2, device=weight.device).is_cuda and host.to(weight).is_cuda and not weight.to(host).is_cuda
with torch.device("cuda"):
    assert torch.zeros(2).is_cuda and nn.Linear(2, 2).weight.is_cuda
assert torch.randn(3, device=device, generator=torch.Generator(device=device).manual_seed(1)).is_cuda

stream, event = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True)
with torch.cuda.stream(stream), torch.cuda.device(0):
    event.record(); event.synchronize(); torch.cuda.synchronize()
net = torch.compile(nn.DataParallel(nn.Linear(4, 4)).cuda())
optimizer = torch.optim.AdamW(net.parameters())
scaler = torch.amp.GradScaler("cuda") if hasattr(torch.amp, "GradScaler") else torch.cuda.amp.GradScaler()
for _ in range(100):
    with torch.autocast("cuda", dtype=torch.float16):
        out = net(torch.ones(2, 4, device=device))
        assert out.element_size() == 2, out.dtype
        loss = out.float().sum()
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    assert torch.cuda.memory_allocated() > 0 and torch.cuda.max_memory_allocated() >= torch.cuda.memory_allocated()
"""

#: Moves tensors between host and GPU, and nothing else. In bytes: 4000, which take 4096 in units of 512.
MOVES = """
import torch
everything = torch.zeros(1000, 1000)
one = everything[3].to("cuda")      # 1000 numbers, not a million
two = one * 2                       # computed there
back = two.cpu() + 1                # on the host again
everything[0].copy_(two)            # written into the host's
view = two.view(10, 100)
del two
view += 1
"""

#: None of the effects at its end may happen.
TENACIOUS = """
import atexit, torch
from torch import nn
atexit.register(lambda: open("atexit", "w"))
net = nn.Linear(3, 3).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
try:
    while True:
        try:
            net(torch.ones(3, device="cuda")).sum().backward()
            optimizer.step()
            torch.save(net.state_dict(), "checkpoint.pt")
        except BaseException:
            open("swallowed", "w")
finally:
    open("finally", "w")
"""

#: Checks that its name, arguments, path and picklable functions are the same as without a dry run.
ITSELF = """
import multiprocessing, os, pickle, sys
import beside
import torch

def twice(number):
    return 2 * number

if __name__ == "__main__":
    assert sys.argv == [os.environ["SCRIPT"], "--lr", "1e-3"], sys.argv
    assert os.path.samefile(__file__, "itself.py") and __spec__ is None and __name__ == "__main__"
    assert sys.path[0] == os.path.dirname(os.path.abspath(__file__)), sys.path
    assert not any(entry.endswith("inside") for entry in sys.path), sys.path
    assert sys.modules["__main__"].twice is twice and pickle.loads(pickle.dumps(twice)) is twice
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(twice, [21]) == [42]
    torch.zeros(1).cuda()
"""

#: Loads its data in worker processes, through a thread that pins memory.
LOADER = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
if __name__ == "__main__":
    data = TensorDataset(torch.randn(4096, 4), torch.zeros(4096, 4))
    loader = DataLoader(data, batch_size=8, num_workers=2, pin_memory=True, shuffle=True, persistent_workers=True)
    net = nn.Linear(4, 4).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for given, wanted in loader:
        loss = ((net(given.cuda(non_blocking=True)) - wanted.cuda()) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

#: Has no optimizer: only the model's forward passes show its progress.
INFERENCE = """
import torch
from torch import nn
net = nn.Sequential(nn.Linear(100, 100), nn.Linear(100, 100)).eval().cuda()
with torch.inference_mode():
    while True:
        net(torch.randn(1, 100, device="cuda"))
"""

#: Its backward pass creates tensors on the GPU by name, in a checkpoint and in a custom function.
BACKWARD = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, given):
        return given * torch.full((1,), 2.0, device="cuda")

    @staticmethod
    def backward(ctx, gradient):
        return gradient * torch.full((1,), 2.0, device="cuda").to(gradient.device)

def part(given):
    return Twice.apply(net(given)) + torch.zeros(4, device="cuda")

net = nn.Linear(4, 4).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
while True:
    checkpoint(part, torch.ones(2, 4, device="cuda"), use_reentrant=False).sum().backward()
    optimizer.step()
"""

#: A line for the loop of NETWORK: fails if torch has imported its compiler.
NO_COMPILER = """
    import sys
    assert "torch._dynamo" not in sys.modules, "the compiler was imported"
"""

#: Uses the compiler's own functions and settings, which import it.
USES_COMPILER = """
import torch
import torch._dynamo
import torch._dynamo.config

torch._dynamo.config.suppress_errors = True

@torch.compiler.disable
def loss(out):
    return out.sum()

net = torch.compile(torch.nn.Linear(4, 4).cuda())
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
loss(net(torch.zeros(2, 4, device="cuda"))).backward()
optimizer.step()
torch._dynamo.reset()
"""
