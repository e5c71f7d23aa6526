"""Train a small convolutional network on handwritten digits: a job of a few seconds, with nothing to download.

The same script runs on a GPU and on the CPU: it takes the first GPU that it sees, and gpuqueue decides which it sees.
"""

from __future__ import annotations

import argparse
import os
import sys

try:
    import torch
    from sklearn.datasets import load_digits
    from torch import Tensor, nn
except ImportError as error:
    sys.exit(f"train.py: there is no {error.name} here: pip install torch scikit-learn")


def try_gpu(i: int = 0) -> torch.device:
    """Return GPU *i* if there is one, else the CPU."""
    return torch.device(f"cuda:{i}" if i < torch.cuda.device_count() else "cpu")


def describe(device: torch.device) -> str:
    """Return the name of *device* and what this process may see."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} threads"
    return f"{device} ({name}), CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', 'not set')}"


def load(device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the digits on *device*, shuffled: images and labels to train on, images and labels to validate on."""
    digits = load_digits()
    order = torch.randperm(len(digits.target))
    images = torch.tensor(digits.images, dtype=torch.float32)[order].unsqueeze(1) / 16  # 1797 images, 1 x 8 x 8
    labels = torch.tensor(digits.target)[order]
    cut = len(labels) * 4 // 5
    images, labels = images.to(device), labels.to(device)  # all of it at once: it is less than 1 MiB
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


def train_epoch(net: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor, size: int) -> float:
    """Go through the images once, in batches of *size*; return the mean loss of an image."""
    net.train()
    total = torch.zeros((), device=labels.device)
    for batch in torch.randperm(len(labels), device=labels.device).split(size):
        loss = nn.functional.cross_entropy(net(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach() * len(batch)  # stays on the device: .item() here would make it wait at each batch
    return total.item() / len(labels)


@torch.no_grad()
def accuracy(net: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the share of the images that *net* reads correctly."""
    net.eval()
    return float((net(images).argmax(dim=1) == labels).float().mean())


def main() -> None:
    """Read the options, train, and say how it went."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5, choices=range(1, 1001), metavar="N")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)

    device = try_gpu()
    images, labels, unseen_images, unseen_labels = load(device)
    net = make_net().to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=options.lr, momentum=0.9)
    print(f"device {describe(device)}")
    print(f"{sum(p.numel() for p in net.parameters()):,} parameters, {len(labels)} images to train on")

    for epoch in range(1, options.epochs + 1):
        loss = train_epoch(net, optimizer, images, labels, options.batch_size)
        share = accuracy(net, unseen_images, unseen_labels)
        print(f"epoch {epoch:3d}  loss {loss:.4f}  accuracy {share:.3f}", flush=True)

    print(f"final loss {loss:.4f}, accuracy {share:.3f}")
    if device.type == "cuda":
        print(f"peak memory {torch.cuda.max_memory_allocated(device) / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
