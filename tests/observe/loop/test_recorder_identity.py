"""A recorded training is bit for bit the one that it would have been."""

import copy
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import lr_scheduler
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from trainguard.observe.loop.recorder import Recorder


def perceptron(evaluates: bool = True) -> list[torch.Tensor]:
    """Train with dropout, batch statistics, Adam, clipping, a schedule and evaluations."""
    model = nn.Sequential(
        nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 3)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = lr_scheduler.CosineAnnealingLR(optimizer, 40)
    inputs = torch.randn(64, 6)
    labels = inputs[:, :3].argmax(1)
    loader = DataLoader(TensorDataset(inputs, labels), batch_size=16, shuffle=True)
    kept = []
    for _ in range(10):
        model.train()
        for rows, target in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(rows), target)
            loss.backward()
            kept.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5))
            optimizer.step()
            scheduler.step()
            kept.append(loss.detach())
        if evaluates:
            model.eval()
            with torch.no_grad():
                kept.append(F.cross_entropy(model(inputs), labels))
    return [*kept, *model.state_dict().values()]


def transformer() -> list[torch.Tensor]:
    """Train a causal transformer with tied weights on characters, with accumulation and AdamW."""

    class Model(nn.Module):
        """Embed, attend, predict."""

        def __init__(self) -> None:
            super().__init__()
            self.embed, self.place = nn.Embedding(17, 16), nn.Embedding(12, 16)
            layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
            self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = nn.Linear(16, 17, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, tokens):
            """Return the logits of each next token."""
            size = tokens.shape[1]
            mask = nn.Transformer.generate_square_subsequent_mask(size)
            hidden = self.embed(tokens) + self.place(torch.arange(size))
            return self.head(self.body(hidden, mask=mask, is_causal=True))

    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    kept = []
    for _ in range(12):
        for _ in range(2):
            tokens = torch.randint(0, 17, (4, 12))
            logits = model(tokens[:, :-1])
            loss = F.cross_entropy(logits.reshape(-1, 17), tokens[:, 1:].reshape(-1)) / 2
            loss.backward()
            kept.append(loss.detach())
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        model.eval()
        with torch.no_grad():
            kept.append(model(tokens[:, :-1]).mean())
        model.train()
    return [*kept, *model.state_dict().values()]


def adversaries() -> list[torch.Tensor]:
    """Train two networks against each other, the critic with a penalty on its gradient."""
    maker = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    critic = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(), nn.Dropout(0.1), nn.Linear(16, 1))
    first = torch.optim.Adam(maker.parameters(), lr=1e-3)
    second = torch.optim.RMSprop(critic.parameters(), lr=1e-3)
    kept = []
    for _ in range(12):
        real, made = torch.randn(8, 2) + 1, maker(torch.randn(8, 4))
        mixed = (real + made.detach()).requires_grad_()
        (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
        penalty = (slope.norm(dim=1) - 1).square().mean()
        second.zero_grad()
        loss = critic(made.detach()).mean() - critic(real).mean() + penalty
        loss.backward()
        second.step()
        first.zero_grad()
        other = -critic(made).mean()
        other.backward()
        first.step()
        kept += [loss.detach(), other.detach()]
    return [*kept, *maker.state_dict().values(), *critic.state_dict().values()]


def closures() -> list[torch.Tensor]:
    """Train with L-BFGS."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")
    inputs = torch.randn(32, 4)

    def closure() -> torch.Tensor:
        """Return the loss, with gradients."""
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
        loss.backward()
        return loss

    kept = [optimizer.step(closure).detach() for _ in range(6)]
    return [*kept, *model.state_dict().values()]


def scaled() -> list[torch.Tensor]:
    """Train under autocast with a gradient scaler, an average and random numbers of all kinds."""
    model = nn.Linear(4, 1)
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=3)
    kept = []
    for _ in range(12):
        rows = torch.from_numpy(np.random.randn(8, 4)).float() * random.random()
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.mse_loss(model(rows), rows.sum(1, keepdim=True))
        scaler.scale(outputs=loss).backward()
        scaler.unscale_(optimizer=optimizer)
        kept.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        scaler.step(optimizer)
        scaler.update()
        with torch.no_grad():
            for mean, new in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(new, 0.1)
    return [*kept, *average.state_dict().values(), *model.state_dict().values()]


def by_hand() -> list[torch.Tensor]:
    """Train without an optimizer, with a sparse embedding and a frozen part."""
    table, body = nn.Embedding(9, 4, sparse=True), nn.Linear(4, 1)
    body.bias.requires_grad_(False)
    kept = []
    for _ in range(12):
        loss = body(table(torch.randint(0, 9, (5,)))).square().mean()
        loss.backward()
        with torch.no_grad():
            for parameter in (table.weight, body.weight):
                parameter.add_(parameter.grad.to_dense(), alpha=-0.1)
                parameter.grad = None
        kept.append(loss.detach())
    return [*kept, table.weight.detach(), body.weight.detach()]


def checkpointed() -> list[torch.Tensor]:
    """Train a part that is computed again, with batch statistics and dropout that is drawn anew."""
    part = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 16))
    head = nn.Linear(16, 3)
    optimizer = torch.optim.SGD([*part.parameters(), *head.parameters()], lr=0.1)
    kept = []
    for _ in range(12):
        inputs = torch.randn(16, 8)
        hidden = checkpoint(part, inputs, use_reentrant=False, preserve_rng_state=False)
        loss = F.cross_entropy(head(hidden), inputs[:, :3].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        kept.append(loss.detach())
    return [*kept, *part.state_dict().values()]


def resized() -> list[torch.Tensor]:
    """Train on buffers that grow with their batches, and whose memory is given back after each."""
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, labels, kept = torch.empty(0), torch.empty(0, dtype=torch.long), []
    for step in range(12):
        drawn = torch.randn(8 + 2 * step, 6)
        inputs.resize_(drawn.shape).copy_(drawn)
        labels.resize_(len(drawn)).copy_(drawn[:, :3].argmax(1))
        scores = model(inputs)
        loss = F.cross_entropy(scores, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        kept.append(loss.detach())
        for done in (inputs, labels, scores.detach()):
            done.untyped_storage().resize_(0)
    return [*kept, *model.state_dict().values()]


def normed() -> list[torch.Tensor]:
    """Train layers whose weights are computed, with a state that each look at them moves on."""
    layers = [nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)) for _ in range(2)]
    model = nn.Sequential(layers[0], nn.Tanh(), layers[1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    kept = []
    for _ in range(12):
        rows = torch.randn(16, 8)
        loss = F.mse_loss(model(rows), rows.tanh())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        kept.append(loss.detach())
    return [*kept, *model.state_dict().values()]


# Before torch 2.8 or so, nothing tells what is packed from what is at hand.
TELLS = hasattr(torch._C._autograd.SavedTensor, "unpack_hook")
TRAININGS = {
    **({"checkpointed": checkpointed} if TELLS else {}),
    "perceptron": perceptron,
    "without evaluation": lambda: perceptron(evaluates=False),
    "transformer": transformer,
    "adversaries": adversaries,
    "closures": closures,
    "scaled": scaled,
    "by hand": by_hand,
    "resized": resized,
    "normed": normed,
}


def run(train) -> tuple[list[bytes], tuple]:
    """Train from a seed; return every bit of what came out, and where the random numbers are."""
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(3)
    bits = [value.detach().contiguous().numpy().tobytes() for value in train()]
    kind, keys, *rest = np.random.get_state()
    return bits, (torch.get_rng_state().tolist(), random.getstate(), kind, keys.tolist(), rest)


@pytest.mark.parametrize("probe", [True, False], ids=["probing", "watching"])
@pytest.mark.parametrize("training", TRAININGS)
def test_losses_and_parameters_are_the_same(training, probe) -> None:
    """Every loss, norm, parameter, buffer and random number is that of an unrecorded run."""
    plain = run(TRAININGS[training])
    with Recorder("x", probe=probe) as recorder:
        recorded = run(TRAININGS[training])
    assert recorder.steps >= 6
    assert recorded[0] == plain[0]
    assert recorded[1] == plain[1]


def test_a_difference_would_be_seen() -> None:
    """The comparison can fail: one random number drawn in the middle changes the end."""

    def disturbed() -> list[torch.Tensor]:
        """Train with one draw too many."""
        torch.rand(1)
        return perceptron()

    assert run(disturbed)[0] != run(perceptron)[0]
    assert run(disturbed)[1] != run(perceptron)[1]
