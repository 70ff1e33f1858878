"""Small trainings on a device, told at the end of each step; none reads a value of its own."""

from collections.abc import Callable
from itertools import cycle

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

Told = Callable[[], None]


def regression(device: str, steps: int, told: Told) -> nn.Module:
    """Train a perceptron with clipping and a scheduler."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1)).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    inputs = torch.randn(64, 8, device=device)
    target = inputs.mean(1, keepdim=True)
    for _ in range(steps):
        loss = F.mse_loss(net(inputs), target)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        told()
    return net


def classifier(device: str, steps: int, told: Told) -> nn.Module:
    """Train a convolution on classes, over two batches for a step."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv1d(1, 4, 3, padding=1), nn.BatchNorm1d(4), nn.Flatten())
    net = net.append(nn.Linear(32, 5)).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(2):
            inputs = torch.randn(16, 1, 8, device=device)
            target = (inputs.mean((1, 2)) * 5).long().clamp(0, 4)
            (F.cross_entropy(net(inputs), target) / 2).backward()
        optimizer.step()
        told()
    return net


def scaled(device: str, steps: int, told: Told) -> nn.Module:
    """Train an attention in half precision, with a scaler and a norm that is clipped."""
    torch.manual_seed(0)
    kind = torch.device(device).type
    net = nn.Sequential(
        nn.Embedding(20, 8),
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
        nn.Linear(8, 20),
    ).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(kind, growth_interval=4)
    for _ in range(steps):
        words = torch.randint(0, 20, (4, 6), device=device)
        with torch.autocast(kind, dtype=torch.bfloat16):
            logits = net(words)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), words.flatten())
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        told()
    return net


def validated(device: str, steps: int, told: Told) -> nn.Module:
    """Train a recurrent network with two losses, and validate it and an average of it."""
    torch.manual_seed(0)
    net = nn.ModuleDict({"cells": nn.GRU(4, 8, batch_first=True), "head": nn.Linear(8, 1)})
    net = net.to(device)
    average = torch.optim.swa_utils.AveragedModel(net["head"])
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    losses = []
    for step in range(steps):
        inputs = torch.randn(8, 5, 4, device=device)
        hidden = net["cells"](inputs)[0]
        loss = F.smooth_l1_loss(net["head"](hidden[:, -1]), inputs.sum((1, 2), keepdim=True)[:, 0])
        loss = loss + 0.01 * hidden.square().mean()
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
        average.update_parameters(net["head"])
        if step % 8 == 7:
            net.eval()
            with torch.no_grad():
                losses.append(F.mse_loss(average(net["cells"](inputs)[0][:, -1]), inputs[:, 0, :1]))
            net.train()
        told()
    return net


def adversarial(device: str, steps: int, told: Told) -> nn.Module:
    """Train a generator and a discriminator, each with an optimizer of its own."""
    torch.manual_seed(0)
    net = nn.ModuleDict({"maker": nn.Linear(4, 2), "judge": nn.Linear(2, 1)}).to(device)
    makes = torch.optim.Adam(net["maker"].parameters(), lr=1e-3)
    judges = torch.optim.Adam(net["judge"].parameters(), lr=1e-3)
    for _ in range(steps):
        real = torch.randn(16, 2, device=device)
        fake = net["maker"](torch.randn(16, 4, device=device))
        judges.zero_grad(set_to_none=False)  # what the maker's turn has left in it is cleared
        apart = F.softplus(-net["judge"](real)) + F.softplus(net["judge"](fake.detach()))
        apart.mean().backward()
        judges.step()
        makes.zero_grad()
        F.softplus(-net["judge"](fake)).mean().backward()
        makes.step()
        told()
    return net


def prefetched(device: str, steps: int, told: Told, *, waits: bool = True) -> nn.Module:
    """Train on batches from one pinned buffer; to fill it again at once is a race."""
    torch.manual_seed(0)
    net, buffer = nn.Linear(8, 1).to(device), torch.zeros(16, 8).pin_memory()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    for _ in range(steps):
        buffer.normal_()
        inputs = buffer.to(device, non_blocking=True)
        if waits:
            torch.get_device_module(device).synchronize()
        loss = F.mse_loss(net(inputs), inputs.mean(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        told()
    return net


def served(device: str, steps: int, told: Told) -> nn.Module:
    """Train on batches that a loader pins, and validate what has batch statistics on classes."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.BatchNorm1d(8))
    net = nn.Sequential(body, nn.Linear(8, 3)).to(device)
    rows = torch.randn(128, 6)
    data = TensorDataset(rows, rows[:, :3].argmax(1))
    learned = cycle(DataLoader(data, 16, shuffle=True, pin_memory=True))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for step in range(steps):
        inputs, target = (part.to(device, non_blocking=True) for part in next(learned))
        loss = F.cross_entropy(net(inputs), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 4 == 3:
            net.eval()
            with torch.no_grad():
                for batch in DataLoader(data, 64):
                    inputs, target = (part.to(device) for part in batch)
                    F.cross_entropy(net(inputs), target)
            net.train()
        told()
    return net


def by_hand(device: str, steps: int, told: Told) -> nn.Module:
    """Train on batches that are moved, with an error that is written by hand."""
    torch.manual_seed(0)
    net, rows = nn.Linear(20, 1).to(device), torch.randn(128, 20)
    batches = cycle(DataLoader(TensorDataset(rows, rows.mean(1, keepdim=True)), 16, shuffle=True))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    for _ in range(steps):
        inputs, target = (part.to(device) for part in next(batches))
        optimizer.zero_grad()
        (net(inputs) - target).square().mean().backward()
        optimizer.step()
        told()
    return net


TRAININGS = (by_hand, regression, classifier, scaled, validated, adversarial, prefetched, served)
