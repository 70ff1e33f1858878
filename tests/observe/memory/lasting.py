"""Small real trainings whose memory does not grow, though it may seem so for a while."""

import logging
from collections import deque
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

from tests.observe.memory.growing import KIB, STEPS, fit, network, pair

GIVEN = [torch.randn(64, 4) for _ in range(STEPS)]


def adam() -> None:
    """Make the state of the optimizer in the first step."""
    model, optimizer = pair()
    for _ in range(STEPS):
        fit(model, optimizer)


def momentum() -> None:
    """Make momentum in the first steps, and schedule the rate."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for _ in range(STEPS):
        fit(model, optimizer)
        schedule.step()


def lazy() -> None:
    """Make parameters in the first call."""
    model = nn.Sequential(nn.LazyLinear(8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    model(torch.randn(4, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(STEPS):
        fit(model, optimizer)


def averaged() -> None:
    """Keep an average of the parameters, made in the third step."""
    (model, optimizer), average = pair(), None
    for step in range(STEPS):
        fit(model, optimizer)
        if step == 2:
            average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        if average is not None:
            average.update_parameters(model)


def deque_fills_up() -> None:
    """Fill a memory that lets go of the oldest, far from full."""
    (model, optimizer), memory = pair(), deque(maxlen=1000)
    for _ in range(STEPS):
        memory.append((fit(model, optimizer)[0].clone(), 1.0))


class Replay:
    """A replay buffer of lists."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.entries: list[torch.Tensor] = []

    def add(self, entry: torch.Tensor) -> None:
        """Add an entry, and let go of the oldest where there are too many."""
        self.entries.append(entry)
        if len(self.entries) > self.capacity:
            self.entries.pop(0)


def replay_fills_up() -> None:
    """Fill a replay buffer with a capacity, far from full."""
    (model, optimizer), replay = pair(), Replay(500)
    for _ in range(STEPS):
        replay.add(fit(model, optimizer)[0].clone())


def list_is_cut() -> None:
    """Keep the latest sixteen only, which ten steps do not show."""
    (model, optimizer), recent = pair(), []
    for _ in range(60):
        recent.append(fit(model, optimizer)[0].clone())
        recent = recent[-16:]


class Cached(Dataset):
    """Samples that are kept once they were made."""

    def __init__(self) -> None:
        self.made: dict[int, torch.Tensor] = {}

    def __len__(self) -> int:
        """Return the number of samples."""
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        """Return a sample of one KiB."""
        if index not in self.made:
            self.made[index] = torch.randn(64, 4)
        return self.made[index]


def samples_cached() -> None:
    """Fill a cache of samples within the first of several passes."""
    model, optimizer = pair()
    loader = DataLoader(Cached(), batch_size=4, shuffle=True)
    for _ in range(2):
        for batch in loader:
            fit(model, optimizer, batch.flatten(0, 1))


def predictions_of_a_pass() -> None:
    """Collect predictions over each pass, to be evaluated at its end."""
    (model, optimizer), loader = pair(), DataLoader(Cached(), batch_size=5)
    for _ in range(2):
        collected = []
        for batch in loader:
            collected += [fit(model, optimizer, batch.flatten(0, 1))[1].detach()]
        torch.cat(collected).mean()


def served_by_workers() -> None:
    """Fetch batches ahead in two workers."""
    model, optimizer = pair()
    for batch in DataLoader(Cached(), batch_size=4, num_workers=2):
        fit(model, optimizer, batch.flatten(0, 1))


def history_of_numbers() -> None:
    """Keep a few numbers of each step, and print them."""
    (model, optimizer), history = pair(), []
    for step in range(STEPS):
        loss = fit(model, optimizer)[2]
        history.append({"step": step, "loss": loss.item(), "rate": 0.1, "scale": loss.detach()})
        print(history)


def records_logged() -> None:
    """Write long records into a log of which somebody keeps all."""
    model, optimizer = pair()
    for step in range(STEPS):
        fit(model, optimizer)
        logging.getLogger("training").warning("step %d of a long run: %s", step, "x" * 2000)


def accumulated() -> None:
    """Accumulate gradients over four micro-batches."""
    model, optimizer = pair()
    for step in range(4 * STEPS):
        model(torch.randn(8, 4)).pow(2).mean().backward()
        if step % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()


def state_detached() -> None:
    """Carry a state on, detached, over a recurrent network."""
    model, state = nn.GRU(4, 8, batch_first=True), None
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(STEPS):
        out, state = model(torch.randn(2, 6, 4), state)
        state = state.detach()
        out.pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def last_graph_kept() -> None:
    """Keep the outputs of the last three steps with their graphs."""
    (model, optimizer), recent = pair(), []
    for _ in range(STEPS):
        recent = [*recent[-2:], fit(model, optimizer)[1]]


def compiled() -> None:
    """Compile the model."""
    model, optimizer = pair()
    compiled_model = torch.compile(model, backend="eager")
    for _ in range(STEPS):
        fit(compiled_model, optimizer)


def curvature() -> None:
    """Fill the history of L-BFGS, one entry for each step."""
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=1)
    x = torch.randn(16, 4)

    def closure() -> torch.Tensor:
        """Return the loss."""
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), x.sum(1, keepdim=True))
        loss.backward()
        return loss

    for _ in range(STEPS):
        optimizer.step(closure)


def masks_by_length() -> None:
    """Fill a cache of masks, one for each of a few lengths."""
    (model, optimizer), masks = pair(), {}
    for step in range(60):
        length = 300 + step * 7 % 13
        masks.setdefault(length, torch.ones(length))
        fit(model, optimizer)


@lru_cache(maxsize=64)
def window(length: int) -> torch.Tensor:
    """Return a window, kept among sixty-four."""
    return torch.hann_window(KIB + length)


def windows_cached() -> None:
    """Ask for another window in each step, of which a bounded number is kept."""
    window.cache_clear()
    model, optimizer = pair()
    for step in range(STEPS):
        window(step)
        fit(model, optimizer)


def adversaries() -> None:
    """Train two networks in turns, the output of one going into the other."""
    (model, optimizer), (critic, second) = pair(), pair()
    for _ in range(STEPS):
        x, out, _ = fit(model, optimizer)
        fit(critic, second, torch.cat([x[:, :3], out.detach()], 1))


def checkpointed() -> None:
    """Compute activations again in backward."""
    model, optimizer = pair()

    def forward(x: Any) -> Any:
        """Call the model within a checkpoint."""
        return checkpoint(model, x, use_reentrant=False)

    for _ in range(STEPS):
        forward(torch.randn(64, 4)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def given_beforehand() -> None:
    """Train on batches that were there before."""
    model, optimizer = pair()
    for batch in GIVEN:
        fit(model, optimizer, batch[:60])


def garbage_in_cycles() -> None:
    """Leave garbage that only the garbage collector takes away."""
    model, optimizer = pair()
    for _ in range(STEPS):
        cycle: list[Any] = [fit(model, optimizer)[1]]
        cycle.append(cycle)


def unfrozen_late() -> None:
    """Train one more layer from the sixth step on."""
    model = network()
    model[0].requires_grad_(False)
    optimizer = torch.optim.AdamW(model[2].parameters())
    for step in range(STEPS):
        if step == 5:
            model[0].requires_grad_(True)
            optimizer.add_param_group({"params": list(model[0].parameters())})
        fit(model, optimizer)


def by_hand() -> None:
    """Step by hand."""
    model = network()
    for _ in range(2 * STEPS):
        model(torch.randn(8, 4)).pow(2).mean().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
                parameter.grad = None


HEALTHY = (
    adam, momentum, lazy, averaged, deque_fills_up, replay_fills_up, list_is_cut,
    samples_cached, predictions_of_a_pass, served_by_workers, history_of_numbers,
    records_logged, accumulated, state_detached, last_graph_kept, compiled, curvature,
    masks_by_length, windows_cached, adversaries, checkpointed, given_beforehand,
    garbage_in_cycles, unfrozen_late, by_hand,
)  # fmt: skip
