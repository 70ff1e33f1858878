"""A watcher that fails is switched off and named once; the training goes on as it would have."""

from collections.abc import Callable, Iterable
from functools import cache
from io import BytesIO
from types import FunctionType, MethodType

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

from trainguard.core.settings import Settings
from trainguard.events.base import EVERYTHING
from trainguard.judging.judge import judge_run
from trainguard.judging.verdict import Verdict
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.watcher import Watcher, overrides, shielded
from trainguard.observe.loop.watchers import watchers
from trainguard.subjects.loop import Run

HOOKS = ("install", "forward", "before_backward", "after_backward", "before_step", "after_step")
EVERY_HOOK = [
    (kind, name)
    for kind in watchers()
    for name in (*HOOKS, "finish")
    if overrides(kind.__new__(kind), name)
]
EVERY_METHOD = [
    (kind, name)
    for kind in watchers()
    for name, method in vars(kind).items()
    if isinstance(method, FunctionType) and name not in ("__init__", "finish", *HOOKS)
]


class Failure(Exception):
    """What is thrown."""


def train(step: Callable[[int], None] = lambda _: None) -> list[torch.Tensor]:
    """Train with what most watchers look at, and return all that came of it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = lr_scheduler.StepLR(optimizer, 2)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    inputs = torch.randn(32, 4)
    loader = DataLoader(TensorDataset(inputs, inputs[:, :3].argmax(1)), 8, shuffle=True)
    kept = []
    for number, (rows, labels) in enumerate(loader):
        optimizer.zero_grad()
        scores = model(rows)
        loss = F.cross_entropy(scores, labels) + F.mse_loss(scores, torch.zeros_like(scores))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        kept.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5))
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        print(f"loss {loss.item():.4f}", sum(p.grad.norm() for p in model.parameters()).item())
        step(number)
        _go_on_from_a_file(model, optimizer, scheduler)
        kept.append(loss.detach())
    with torch.no_grad():
        kept.append(F.cross_entropy(model.eval()(inputs), inputs[:, :3].argmax(1)))
    return [*kept, *(p.detach() for p in model.parameters())]


def _go_on_from_a_file(model: nn.Module, optimizer: torch.optim.Optimizer, rule: object) -> None:
    """Write a state down, read and load it again, and set a seed, in the middle of a training."""
    file = BytesIO()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save({**state, "schedule": rule.state_dict()}, file)
    file.seek(0)
    found = torch.load(file, weights_only=True)
    model.load_state_dict(found["model"])
    optimizer.load_state_dict(found["optimizer"])
    np.random.seed(np.array([1, 2, 3]))


@cache
def train_alone() -> list[torch.Tensor]:
    """Train once without being recorded."""
    return train()


def record(kind: type[Watcher], name: str, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Record the training with one method of a watcher failing; what came of it is as without."""
    alone = train_alone()

    def fail(*_args: object, **_named: object) -> None:
        """Fail."""
        raise Failure("on purpose")

    is_shielded = hasattr(vars(kind).get(name), "__wrapped__")
    monkeypatch.setattr(kind, name, shielded(fail) if is_shielded else fail)
    recorder = Recorder("x")
    with recorder:
        together = train()
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))
    return recorder


def lost(verdicts: Iterable[Verdict], recorder: Recorder) -> list[Verdict]:
    """Return what was not judged though it had something to judge."""
    skipped = [v for v in verdicts if v.outcome == "skipped"]
    return [v for v in skipped if v.reason != v.invariant.evidence(recorder.trace)]


@pytest.mark.parametrize(
    ("kind", "name"),
    [  # all but one in ten are slow: each is a training
        pytest.param(k, n, id=f"{k.__name__}.{n}", marks=[pytest.mark.slow] if place % 10 else [])
        for place, (k, n) in enumerate(EVERY_HOOK)
    ],
)
def test_a_hook_that_fails_is_told_once(
    kind: type[Watcher], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line says which watcher, and why; what is judged by it is not judged."""
    recorder = record(kind, name, monkeypatch)
    told = recorder.trace.conditions["faults"]
    failing = getattr(kind, name)  # an heir may have its own
    heirs = [each.__name__ for each in watchers() if getattr(each, name, None) is failing]
    assert [line.partition(" was switched off: Failure: ")[0] for line in told] == heirs
    verdicts = judge_run(Run(name="x"), recorder.trace, Settings())
    assert all("Failure: on purpose" in v.reason for v in lost(verdicts, recorder))
    assert not [v for v in verdicts if v.outcome == "broken"]


@pytest.mark.parametrize(
    ("kind", "name"), EVERY_METHOD, ids=[f"{k.__name__}.{n}" for k, n in EVERY_METHOD]
)
def test_a_method_that_fails_does_no_harm(
    kind: type[Watcher], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever method of whatever watcher raises, the training does not see it."""
    record(kind, name, monkeypatch)


def test_a_watcher_that_fails_at_the_end_costs_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The invariants that read other columns and events are judged as always."""
    recorder = record(next(k for k in watchers() if k.__name__ == "Rates"), "finish", monkeypatch)
    verdicts = judge_run(Run(name="x"), recorder.trace, Settings())
    skipped = {v.invariant.name for v in lost(verdicts, recorder)}
    assert "schedule_is_advanced" in skipped or any("sched" in name for name in skipped)
    assert len(skipped) < len(verdicts) / 3


def test_every_watcher_says_what_it_makes() -> None:
    """One that does not would cost every invariant, where it fails."""
    assert [kind.__name__ for kind in watchers() if EVERYTHING in kind.makes] == []


def test_every_column_of_a_watcher_is_declared() -> None:
    """What a watcher answers is among what it says that it makes."""
    recorder, undeclared = Recorder("x"), set()

    def note(method: MethodType) -> MethodType:
        """Return a method that takes down the columns which nobody expects."""

        def wrapper(watcher: Watcher, *what: object) -> object:
            """Call the method."""
            columns = method(*what) or {}
            undeclared.update(() if "*" in watcher.makes else set(columns) - {*watcher.makes})
            return columns

        return MethodType(wrapper, method.__self__)

    for instant, methods in recorder._told.items():
        recorder._told[instant] = [note(method) for method in methods]
    with recorder:
        train()
    assert undeclared == set()


def test_meta_tensors_end_nothing() -> None:
    """A copy of the model on the meta device is called, and its loss taken, in a healthy run."""
    alone = train()
    model = nn.Linear(4, 3, device="meta")

    def plan(_step: int) -> None:
        """Compute a loss without values, with a graph and without one."""
        loss = F.mse_loss(model(torch.empty(2, 4, device="meta")), torch.empty(2, 3, device="meta"))
        loss.backward()
        with torch.no_grad():
            F.cross_entropy(torch.empty(2, 3, device="meta"), torch.empty(2, 3, device="meta"))
            model(torch.empty(2, 4, device="meta"))

    with Recorder("x") as recorder:
        together = train(plan)
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))
    assert "faults" not in recorder.trace.conditions
    assert recorder.steps == 4


def test_a_meta_model_that_steps_is_left_alone() -> None:
    """An optimizer over parameters without values makes steps that nobody can judge."""
    model = nn.Linear(4, 3, device="meta")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder("x") as recorder:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.empty(2, 4, device="meta")).sum().backward()
            optimizer.step()
        train()
    assert "faults" not in recorder.trace.conditions
    assert recorder.steps == 7
