"""Ten kinds of short trainings, and the rows that each would log."""

import copy
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import lr_scheduler as sched

STEPS = 240
Rows = list[dict[str, float]]


def classes(seed: int, size: int, noise: float) -> Callable[[int], tuple[Tensor, Tensor]]:
    """Return what draws samples of classes that a random teacher tells apart."""
    teacher = torch.randn(16, size, generator=torch.Generator().manual_seed(seed))

    def draw(count: int) -> tuple[Tensor, Tensor]:
        """Draw some samples."""
        x = torch.randn(count, 16)
        return x, (x @ teacher + noise * torch.randn(count, size)).argmax(1)

    return draw


def numbers(seed: int, noise: float) -> Callable[[int], tuple[Tensor, Tensor]]:
    """Return what draws samples with a number that a random teacher knows."""
    teacher = torch.randn(16, 1, generator=torch.Generator().manual_seed(seed))

    def draw(count: int) -> tuple[Tensor, Tensor]:
        """Draw some samples."""
        x = torch.randn(count, 16)
        return x, (x @ teacher).tanh() + noise * torch.randn(count, 1)

    return draw


def sequences(count: int) -> tuple[Tensor, Tensor]:
    """Draw sequences that count on from a random symbol, and their next symbols."""
    tokens = (
        torch.randint(0, 12, (count, 1)) + torch.arange(9) * torch.randint(1, 3, (count, 1))
    ) % 12
    return tokens[:, :-1], tokens[:, 1:]


class Recurrent(nn.Module):
    """A small language model."""

    def __init__(self, attention: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 16)
        self.attention = attention
        self.body = (
            nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
            if attention
            else nn.GRU(16, 24, batch_first=True)
        )
        self.head = nn.Linear(16 if attention else 24, 12)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the next symbols, classes second."""
        x = self.embed(tokens)
        if self.attention:
            mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
            x = self.body(x, src_mask=mask)
        else:
            x = self.body(x)[0]
        return self.head(x).transpose(1, 2)


def mlp(out: int, dropout: float = 0.0) -> nn.Module:
    """Return a small network."""
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(dropout), nn.Linear(32, out))


def warm(total: int, shape: Callable[[float], float]) -> Callable[[int], float]:
    """Return the factor of a schedule with a warm-up of a tenth."""
    begin = total // 10
    return lambda n: (n + 1) / begin if n < begin else shape((n - begin) / (total - begin))


def kinds(kind: int, seed: int) -> tuple[nn.Module, Any, Any, Any, Any]:
    """Return a model, its data, its loss, its optimizer and its scheduler."""
    half = lambda x: 0.5 * (1 + math.cos(math.pi * min(x, 1)))  # noqa: E731 a shape
    line = lambda x: max(1 - x, 0)  # noqa: E731 a shape
    big = 1 + seed % 3
    data, loss = numbers(seed, 0.1), F.mse_loss
    model = mlp(10, 0.1 * (seed % 3)) if kind in (1, 2, 6, 8) else mlp(1)
    if kind in (1, 2, 6, 8):
        data, loss = classes(seed, 10, 0.5), F.cross_entropy
    if kind in (4, 5):
        model, data, loss = Recurrent(kind == 5), sequences, F.cross_entropy
    if kind == 3:
        model, data = mlp(16), lambda n: (x := torch.randn(n, 4) @ torch.ones(4, 16).tril(), x)
    if kind == 9:  # a fine-tuning: it has learned before
        fit = torch.optim.Adam(model.parameters(), 1e-2)
        for _ in range(300):
            x, y = data(64)
            fit.zero_grad()
            loss(model(x), y).backward()
            fit.step()
    rate = (3e-3, 0.1, 3e-3, 3e-3, 5e-3, 3e-3, 1e-2, 3e-3, 1e-3, 1e-4)[kind] * (0.5 + 0.5 * big)
    momentum = kind == 1
    make = partial(torch.optim.SGD, momentum=0.9) if momentum else torch.optim.AdamW
    optimizer: Any = make(model.parameters(), rate)
    scheduler: Any = (
        lambda o: sched.ConstantLR(o, 1.0),
        lambda o: sched.StepLR(o, STEPS // 3, 0.3),
        lambda o: sched.LambdaLR(o, warm(STEPS, half)),
        lambda o: sched.ExponentialLR(o, 0.99),
        lambda o: sched.LambdaLR(o, warm(STEPS, line)),
        lambda o: sched.CosineAnnealingLR(o, STEPS, rate / 50),
        lambda o: sched.OneCycleLR(o, rate, total_steps=STEPS + 1),
        lambda o: sched.ReduceLROnPlateau(o, patience=3, factor=0.5),
        lambda o: sched.PolynomialLR(o, STEPS + 1, 2.0),
        lambda o: sched.LambdaLR(o, warm(STEPS, lambda _: 1.0)),
    )[kind](optimizer)
    return model, data, loss, optimizer, scheduler


def train(kind: int, seed: int) -> Rows:
    """Train, killed and resumed where the seed is odd, and return the rows that were logged."""
    torch.manual_seed(1000 * kind + seed)
    model, data, loss_of, optimizer, scheduler = kinds(kind, seed)
    every, batch, rows = 1 + seed % 4, (16, 32, 64)[seed % 3], list[dict[str, float]]()
    held_out = data(256)
    killed, saved, step = STEPS // 2 + 3 * seed if seed % 2 else -1, None, 0
    while step < STEPS:
        if step == STEPS // 2 and saved is None:
            parts = (model, optimizer, scheduler)
            saved = copy.deepcopy([part.state_dict() for part in parts])
        if step == killed:
            for part, state in zip((model, optimizer, scheduler), saved or (), strict=True):
                part.load_state_dict(state)
            step, killed = STEPS // 2, -1
        model.train()
        x, y = data(batch)
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        norm = float(nn.utils.clip_grad_norm_(model.parameters(), 1.0 if kind == 2 else 1e9))
        rate = optimizer.param_groups[0]["lr"]
        optimizer.step()
        told = {"step": step, "loss": loss.item(), "lr": rate, "grad_norm": norm}
        told["time"] = time.time()
        value = None
        if step % 16 == 15:
            model.eval()
            with torch.no_grad():
                value = float(loss_of(model(held_out[0]), held_out[1]))
        plateau = isinstance(scheduler, sched.ReduceLROnPlateau)
        if not plateau:
            scheduler.step()
        elif value is not None:
            scheduler.step(value)
        if step % every == 0:
            rows.append(told)
        if value is not None:
            rows.append({"step": step, "val_loss": value, "time": time.time()})
        step += 1
    return rows
