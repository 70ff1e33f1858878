"""Small real trainings whose memory grows, each in another way."""

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

KIB = 256  # floats
STEPS = 12
CACHE: dict[int, torch.Tensor] = {}


def network() -> nn.Module:
    """Return a small perceptron."""
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))


def fit(
    model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Make one step, and return the input, the output and the loss."""
    x = torch.randn(64, 4) if x is None else x
    out = model(x)
    loss = F.mse_loss(out, x.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return x, out, loss


def pair() -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a model and an optimizer of it."""
    model = network()
    return model, torch.optim.AdamW(model.parameters())


def losses_kept() -> None:
    """Keep the losses with their graphs."""
    (model, optimizer), losses = pair(), []
    for _ in range(STEPS):
        losses += [fit(model, optimizer)[2]]


def loss_added_up() -> None:
    """Add up the losses with their graphs."""
    (model, optimizer), running = pair(), torch.zeros(())
    for _ in range(STEPS):
        running = running + fit(model, optimizer)[2]


def outputs_kept() -> None:
    """Keep the outputs with their graphs in records."""
    (model, optimizer), records = pair(), []
    for step in range(STEPS):
        records += [{"step": step, "out": fit(model, optimizer)[1]}]


def state_carried() -> None:
    """Carry a state on without detaching it."""
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(3))], lr=0.1)
    state = torch.zeros(2, 4)
    for _ in range(STEPS):
        state = model(torch.randn(2, 4)) + 0.5 * state
        state.sum().backward(retain_graph=True)
        optimizer.step()


def evaluated_with_graph() -> None:
    """Keep what an evaluation with gradients came to."""
    (model, optimizer), scores = pair(), []
    for _ in range(STEPS):
        fit(model, optimizer)
        scores.append(model(torch.randn(8, 4)).mean())


def losses_of_critic_kept() -> None:
    """Keep the losses of the second of two optimizers."""
    (model, optimizer), (critic, second), losses = pair(), pair(), []
    for _ in range(STEPS):
        fit(model, optimizer)
        losses.append(fit(critic, second)[2])


def stepped_by_hand_and_kept() -> None:
    """Keep the losses of steps that no optimizer makes."""
    model, losses = network(), []
    for _ in range(2 * STEPS):
        loss = model(torch.randn(8, 4)).pow(2).mean()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
                parameter.grad = None
        losses.append(loss)


def tensors_kept() -> None:
    """Keep one KiB of every step."""
    (model, optimizer), kept = pair(), []
    for _ in range(STEPS):
        kept += [fit(model, optimizer)[0].clone()]


def chunks_kept() -> None:
    """Keep the chunks of context in a dict of the module."""
    CACHE.clear()
    model, optimizer = pair()
    for step in range(STEPS):
        CACHE[step] = torch.ones(KIB)
        fit(model, optimizer)


@cache
def mask(length: int) -> torch.Tensor:
    """Return a mask, kept for ever."""
    return torch.ones(KIB + length)


def masks_cached() -> None:
    """Ask for another mask in each step."""
    mask.cache_clear()
    model, optimizer = pair()
    for step in range(STEPS):
        mask(step)
        fit(model, optimizer)


def arrays_kept() -> None:
    """Keep a NumPy array of one KiB of every step."""
    (model, optimizer), kept = pair(), []
    for _ in range(STEPS):
        kept.append(np.zeros(KIB, dtype=np.float32))
        fit(model, optimizer)


def words_kept() -> None:
    """Keep what was read from a file, 8 KiB of every step."""
    (model, optimizer), kept = pair(), {}
    for step in range(STEPS):
        kept[step] = bytes(8192)
        fit(model, optimizer)


GROWING: dict[str, tuple[Callable[[], None], str]] = {
    "losses_kept": (losses_kept, "`losses`, a list of 9"),
    "loss_added_up": (loss_added_up, "`running`"),
    "outputs_kept": (outputs_kept, "`records`, a list of 9"),
    "state_carried": (state_carried, "`state`"),
    "evaluated_with_graph": (evaluated_with_graph, "`scores`, a list of 9"),
    "losses_of_critic_kept": (losses_of_critic_kept, "`losses`, a list of 9"),
    "stepped_by_hand_and_kept": (stepped_by_hand_and_kept, "`losses`, a list of"),
    "tensors_kept": (tensors_kept, "`kept`, a list of 9"),
    "chunks_kept": (chunks_kept, "`CACHE`, a dict of 10"),
    "masks_cached": (masks_cached, "the cache of `mask`"),
    "arrays_kept": (arrays_kept, ""),
    "words_kept": (words_kept, ""),
}
