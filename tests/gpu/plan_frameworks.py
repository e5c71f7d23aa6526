"""Jobs of the plan that use a framework: real deaths for lack of memory, work, and a training to estimate.

python plan_frameworks.py torch|torch-cublas|jax|cupy   allocates until the framework says that memory is out
python plan_frameworks.py work SECONDS                  keeps the GPU busy
python plan_frameworks.py train                         trains a small network
"""

from __future__ import annotations

import sys
import time

HALF_GIB = 2**29
#: More than any card has, in blocks of half a GiB.
BLOCKS = 1000


def torch_fills() -> object:
    """Fill the memory with tensors."""
    import torch  # noqa: PLC0415 - only what the job uses, as below

    return [torch.empty(HALF_GIB, dtype=torch.uint8, device="cuda") for _ in range(BLOCKS)]


def torch_cublas_fills() -> object:
    """Fill the memory with small tensors, and then make the first call of cuBLAS, which needs memory of its own."""
    import torch  # noqa: PLC0415

    held = []
    try:
        while True:
            held.append(torch.empty(2**24, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError:
        square = held[0].view(torch.float32)[:4096].view(64, 64)
    return (square @ square).sum().item()


def jax_fills() -> object:
    """Fill the memory with arrays."""
    import jax.numpy as jnp  # noqa: PLC0415

    return [jnp.ones((HALF_GIB // 4,), jnp.float32).block_until_ready() for _ in range(BLOCKS)]


def cupy_fills() -> object:
    """Fill the memory with arrays."""
    import cupy  # noqa: PLC0415

    return [cupy.ones(HALF_GIB // 4, cupy.float32) for _ in range(BLOCKS)]


def work(duration_s: float) -> None:
    """Multiply matrices for *duration_s* seconds."""
    import torch  # noqa: PLC0415

    matrix = torch.randn(4096, 4096, device="cuda")
    until_s = time.monotonic() + duration_s
    while time.monotonic() < until_s:
        matrix = (matrix @ matrix).clamp(-1, 1)
        torch.cuda.synchronize()


def train() -> None:
    """Train a network of some hundred MiB for a few steps."""
    import torch  # noqa: PLC0415
    from torch import nn  # noqa: PLC0415

    net = nn.Sequential(nn.Linear(784, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 10)).cuda()
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(20):
        given, expected = torch.randn(256, 784, device="cuda"), torch.randint(0, 10, (256,), device="cuda")
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(given), expected).backward()
        optimizer.step()


FILLS = {"torch": torch_fills, "torch-cublas": torch_cublas_fills, "jax": jax_fills, "cupy": cupy_fills}


if __name__ == "__main__":
    if sys.argv[1] == "work":
        work(float(sys.argv[2]))
    elif sys.argv[1] == "train":
        train()
    else:
        FILLS[sys.argv[1]]()
