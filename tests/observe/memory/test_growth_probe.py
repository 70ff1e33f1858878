"""The probe `growth` of models, losses, loops and scripts."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import trainguard as tg
from tests.observe.memory import growing
from trainguard.core.errors import SubjectError, Unjudged
from trainguard.core.settings import Settings
from trainguard.events.trace import Trace, Usage
from trainguard.invariants.memory.growth import memory_does_not_grow
from trainguard.observe.memory.growth_report import HostMemory, LineMemory, Span, span
from trainguard.observe.memory.observer import MemoryObservation
from trainguard.subjects.subject import Subject

BUDGET = tg.Budget(peak="1 GiB")
KEPT: list[torch.Tensor] = []


def trace(subject: Subject) -> Trace[Usage]:
    """Observe whether the memory of a subject grows."""
    return MemoryObservation(subject, "cpu", "float32", Settings()).trace("growth")


def found(subject: Subject) -> list[str]:
    """Return what is found about a subject, in words."""
    return [f"{f.rank} {f.at} {f.why}" for f in memory_does_not_grow(trace(subject))]


class Keeping(nn.Module):
    """A layer that keeps what it returns, or a copy of it."""

    def __init__(self, graph: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 8)
        self.graph = graph
        self.kept: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a hidden state."""
        hidden = self.linear(x)
        self.kept.append(hidden if self.graph else hidden.detach().repeat(8, 1))
        return hidden


def model(make: type[nn.Module], **options: bool) -> tg.Model:
    """Declare a model of vectors."""
    return tg.Model(
        lambda: make(**options), inputs={"x": tg.real("B 4", -1, 1)}, sizes={"B": 16}, budget=BUDGET
    )


def test_a_model_that_keeps_its_outputs_is_found() -> None:
    """Models are called in real steps; what they keep is named by its attribute."""
    by = r"held by `(Keeping\.)?kept`, a list of"  # whose it is, where Python's collector can tell
    (graphs,) = found(model(Keeping, graph=True))
    assert re.match("broken output of `Keeping` " + by, graphs)
    (tensors,) = found(model(Keeping, graph=False))
    assert re.match("broken made in `Keeping` " + by, tensors)


def test_a_model_is_left_as_it_was() -> None:
    """What a given module keeps in its steps is not kept by the module itself."""
    module = Keeping(graph=True)
    subject = tg.Model(module, inputs={"x": tg.real("B 4", -1, 1)}, sizes={"B": 16}, budget=BUDGET)
    assert found(subject)
    assert module.kept == []


def keeping_loss(x: torch.Tensor) -> torch.Tensor:
    """Return a loss, and keep what it was made of."""
    KEPT.append(x.detach().repeat(16))
    return x.pow(2).mean()


def test_a_loss_that_keeps_is_found() -> None:
    """Losses are called again and again; what they keep in this process is gone with the child."""
    subject = tg.Loss(
        keeping_loss, inputs={"x": tg.real("B", -1, 1)}, sizes={"B": 32}, budget=BUDGET
    )
    (kept,) = found(subject)
    assert "`KEPT`, a list of" in kept
    healthy = tg.Loss(
        torch.sum, inputs={"input": tg.real("B", -1, 1)}, sizes={"B": 32}, budget=BUDGET
    )
    assert found(healthy) == []
    assert KEPT == []


def test_a_loop_is_followed_in_a_process_of_its_own() -> None:
    """What a loop leaves behind in this process is nothing."""
    growing.CACHE.clear()
    assert len(found(tg.Loop(growing.chunks_kept, budget=BUDGET))) == 1
    assert growing.CACHE == {}


def test_a_script_is_followed_too(tmp_path: Path) -> None:
    """A script is executed as it is, and its own lines are named."""
    path = tmp_path / "train.py"
    path.write_text(
        "import torch\n"
        "weight = torch.ones(8, requires_grad=True)\n"
        "optimizer = torch.optim.SGD([weight], lr=0.1)\n"
        "losses = []\n"
        "for step in range(12):\n"
        "    loss = (weight * torch.randn(8)).sum()\n"
        "    loss.backward()\n"
        "    optimizer.step()\n"
        "    losses.append(loss)\n",
        encoding="utf-8",
    )
    script = tg.Script(path, budget=BUDGET, directory=tmp_path)
    (finding,) = memory_does_not_grow(trace(script))
    assert finding.source == f"{path}:7"
    assert "`losses`, a list of 9" in finding.why


def test_a_short_run_is_not_judged() -> None:
    """A run of fewer than ten steps tells nothing."""

    def short() -> None:
        """Make five steps."""
        model, optimizer = growing.pair()
        for _ in range(5):
            growing.fit(model, optimizer)

    with pytest.raises(Unjudged, match="5 steps were made: growth is told from 10 on"):
        trace(tg.Loop(short, budget=BUDGET))


def test_a_run_that_raises_is_a_fault() -> None:
    """What a loop raises is said with the number of steps it had made."""

    def fails() -> None:
        """Fail in the second step."""
        growing.fit(*growing.pair())
        raise KeyError("label")

    with pytest.raises(SubjectError, match="it raised KeyError after 1 steps: 'label'"):
        trace(tg.Loop(fails, budget=BUDGET))


def test_steps_are_steady_early_and_late() -> None:
    """Something must be kept of three in four steps of each third."""
    whole = Span(3, 14, True)
    assert whole.steady(set(range(3, 15)))
    assert whole.steady(set(range(3, 15)) - {4, 9, 14})
    assert not whole.steady(set(range(7, 15)))
    assert not whole.steady(set(range(3, 11)))
    assert not whole.steady({3, 5, 7, 9, 11, 13})
    assert not Span(3, 5, True).steady({3, 4, 5})


def test_the_span_lies_between_the_ends_of_passes() -> None:
    """What fills in the first pass, or is let go of at the end of one, is not in it."""
    assert span(10, [], served=False) == Span(3, 8, True)
    assert span(10, [], served=True) == Span(3, 8, False)
    assert span(10, [4], served=True) == Span(3, 8, False)
    assert span(20, [4, 8, 12], served=True) == Span(5, 12, True)
    assert span(10, [3, 6, 9], served=True) == Span(4, 8, True)
    assert span(10, [6, 9], served=True) == Span(3, 8, False)


def test_a_line_must_grow_between_all_looks() -> None:
    """What grew once, or stopped, is no growth; bytes are per step."""
    host = HostMemory()
    for step, a, b, c in ((2, 0, 0, 0), (6, 4096, 9999, 4096), (10, 8192, 9999, 8000)):
        host.looks.append((step, {"a": LineMemory(a, a), "b": LineMemory(b), "c": LineMemory(c)}))
    assert host.growing(1024, 0) == {"a": LineMemory(1024, 1024)}
    assert set(host.growing(900, 0)) == {"a", "c"}
    assert host.growing(1024, 5) == {}
