"""Small real trainings that tests of the recorder run, each in the manner of some author."""

from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.nn import functional as F


def network(inputs: int = 4, outputs: int = 1) -> nn.Sequential:
    """Return a small perceptron."""
    return nn.Sequential(nn.Linear(inputs, 16), nn.Tanh(), nn.Linear(16, outputs))


def batches(count: int, size: int = 16) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield inputs (size, 4) and their sums (size, 1)."""
    for _ in range(count):
        inputs = torch.randn(size, 4)
        yield inputs, inputs.sum(1, keepdim=True)


def plain(
    steps: int = 6,
    *,
    make: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    clip: float | None = None,
    zero: bool = True,
) -> nn.Module:
    """Train with one optimizer, as most loops do."""
    model = network()
    optimizer = make(model.parameters(), lr=0.05)
    for inputs, target in batches(steps):
        if zero:
            optimizer.zero_grad()
        F.mse_loss(model(inputs), target).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return model


def adversaries(steps: int = 4) -> None:
    """Train a generator against a critic, as torch's own example does."""
    generator, critic = network(3, 4), network(4, 1)
    first = torch.optim.Adam(generator.parameters())
    second = torch.optim.Adam(critic.parameters())
    real, fake = torch.ones(16, 1), torch.zeros(16, 1)
    for inputs, _ in batches(steps):
        critic.zero_grad()
        F.binary_cross_entropy_with_logits(critic(inputs), real).backward()
        made = generator(torch.randn(16, 3))
        F.binary_cross_entropy_with_logits(critic(made.detach()), fake).backward()
        second.step()
        generator.zero_grad()
        F.binary_cross_entropy_with_logits(critic(made), real).backward()
        first.step()


def closures(steps: int = 4) -> None:
    """Train with L-BFGS, which computes the loss several times in a step."""
    model, (inputs, target) = network(), next(batches(1, 64))
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure() -> torch.Tensor:
        """Return the loss, with gradients."""
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs), target)
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)


def by_hand(steps: int = 5, *, through_data: bool = False) -> nn.Module:
    """Train without an optimizer."""
    model = network()
    for inputs, target in batches(steps):
        F.mse_loss(model(inputs), target).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                if through_data:
                    parameter.data = parameter.data - 0.05 * parameter.grad
                else:
                    parameter -= 0.05 * parameter.grad
                parameter.grad = None
    return model


def accumulated(steps: int = 3, micro: int = 4, *, zero: bool = True, none: bool = True) -> None:
    """Train with gradients accumulated over micro-batches."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for index, (inputs, target) in enumerate(batches(steps * micro, 8)):
        (F.mse_loss(model(inputs), target) / micro).backward()
        if index % micro == micro - 1:
            optimizer.step()
            if zero:
                optimizer.zero_grad(set_to_none=none)


def scaled(steps: int = 6, *, clip: str = "after", scale: float = 2.0**10) -> None:
    """Train under a gradient scaler; `clip` says whether gradients are clipped after unscaling."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    for inputs, target in batches(steps):
        optimizer.zero_grad()
        scaler.scale(F.mse_loss(model(inputs), target)).backward()
        if clip == "after":
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
