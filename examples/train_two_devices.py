"""Train one network on two devices at once: data parallelism by hand.

Each device has a replica of the network and takes its part of the batch; the gradients are added up over the devices
(allreduce), so every replica takes the same step and they stay equal. With fewer than two GPUs it says so and runs
both replicas on the CPU.
"""

from __future__ import annotations

import argparse
import copy
import os
import sys

try:
    import torch
    from sklearn.datasets import load_digits
    from torch import Tensor, nn
except ImportError as error:
    sys.exit(f"train_two_devices.py: there is no {error.name} here: pip install torch scikit-learn")


def try_all_gpus() -> list[torch.device]:
    """Return every GPU that this process sees, or the CPU if there is none."""
    return [torch.device(f"cuda:{i}") for i in range(torch.cuda.device_count())] or [torch.device("cpu")]


def choose_two() -> list[torch.device]:
    """Return two GPUs if there are two, else the CPU twice; say which."""
    gpus = [device for device in try_all_gpus() if device.type == "cuda"]
    print(f"{len(gpus)} GPUs, CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', 'not set')}")
    if len(gpus) < 2:  # noqa: PLR2004 - the two of the title
        print("fewer than two GPUs: two replicas on the CPU instead")
        return [torch.device("cpu")] * 2
    return gpus[:2]


def load() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the digits, shuffled: images and labels to train on, images and labels to validate on."""
    digits = load_digits()
    order = torch.randperm(len(digits.target))
    images = torch.tensor(digits.images, dtype=torch.float32)[order].unsqueeze(1) / 16  # 1797 images, 1 x 8 x 8
    labels = torch.tensor(digits.target)[order]
    cut = len(labels) * 4 // 5
    return images[:cut], labels[:cut], images[cut:], labels[cut:]


def make_net() -> nn.Module:
    """Return an untrained network from an 8 x 8 image to a score for each digit."""
    return nn.Sequential(
        nn.Conv2d(1, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 10),
    )


def split(batch: Tensor, devices: list[torch.device]) -> list[Tensor]:
    """Return the parts of *batch*, one on each device, as equal in size as can be."""
    return [part.to(device) for part, device in zip(batch.tensor_split(len(devices)), devices, strict=True)]


@torch.no_grad()
def allreduce(tensors: list[Tensor]) -> None:
    """Leave the sum of the tensors, which are on different devices, in each of them."""
    first, *others = tensors
    for other in others:
        first += other.to(first.device)
    for other in others:
        other.copy_(first)


def train_batch(
    replicas: list[nn.Module], optimizers: list[torch.optim.Optimizer], images: Tensor, labels: Tensor
) -> float:
    """Take one step with every replica; return the sum of the losses of the images."""
    devices = [next(replica.parameters()).device for replica in replicas]
    # 1. Each replica does its part. A GPU works on its own while Python goes on to give the next one its part.
    losses = []
    for replica, x, y in zip(replicas, split(images, devices), split(labels, devices), strict=True):
        replica.zero_grad()
        loss = nn.functional.cross_entropy(replica(x), y, reduction="sum")
        (loss / len(labels)).backward()  # by the size of the whole batch: the parts add up to its mean
        losses.append(loss.detach())
    # 2. The gradients of each parameter are added up over the replicas.
    for parameters in zip(*(replica.parameters() for replica in replicas), strict=True):
        allreduce([parameter.grad for parameter in parameters if parameter.grad is not None])
    # 3. All take the same step.
    for optimizer in optimizers:
        optimizer.step()
    # 4. Only now wait for the numbers.
    return sum(loss.item() for loss in losses)


@torch.no_grad()
def accuracy(net: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the share of the images that *net* reads correctly."""
    device = next(net.parameters()).device
    return float((net(images.to(device)).argmax(dim=1) == labels.to(device)).float().mean())


def main() -> None:
    """Read the options, train both replicas, and say how it went."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--epochs", type=int, default=5, choices=range(1, 1001), metavar="N")
    parser.add_argument("--batch-size", type=int, default=128, help="images in a batch, all devices together")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)

    devices = choose_two()
    images, labels, unseen_images, unseen_labels = load()
    net = make_net()
    replicas = [copy.deepcopy(net).to(device) for device in devices]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.SGD(replica.parameters(), lr=options.lr, momentum=0.9) for replica in replicas
    ]
    for number, device in enumerate(devices):
        print(f"replica {number}: device {device}")
    print(f"{sum(p.numel() for p in net.parameters()):,} parameters in each, {len(labels)} images to train on")

    for epoch in range(1, options.epochs + 1):
        batches = torch.randperm(len(labels)).split(options.batch_size)
        total = sum(train_batch(replicas, optimizers, images[batch], labels[batch]) for batch in batches)
        loss, share = total / len(labels), accuracy(replicas[0], unseen_images, unseen_labels)
        print(f"epoch {epoch:3d}  loss {loss:.4f}  accuracy {share:.3f}", flush=True)

    pairs = zip(*(replica.parameters() for replica in replicas), strict=True)
    apart = max((one.cpu() - two.cpu()).abs().max().item() for one, two in pairs)
    print(f"final loss {loss:.4f}, accuracy {share:.3f}; the replicas are {apart:.1e} apart")
    for device in devices:
        if device.type == "cuda":
            print(f"peak memory on {device} {torch.cuda.max_memory_allocated(device) / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
