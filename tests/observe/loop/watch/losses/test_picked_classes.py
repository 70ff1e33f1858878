"""Losses by hand that pick classes along another axis than that of their softmax."""

import weakref

import pytest
import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.losses.picked_classes import _READERS

LABELS = torch.tensor([0, 2, 1, 2, 0])
WHOLE = torch.nn.functional.one_hot(LABELS, 3).float() * 0.9 + 0.1 / 3
LOSSES = {
    "gathered": lambda z, axis: -z.log_softmax(axis).gather(1, LABELS[:, None]).mean(),
    "indexed": lambda z, axis: -z.softmax(axis)[range(5), LABELS].add(1e-8).log().mean(),
    "weighed": lambda z, axis: -(WHOLE * z.log_softmax(axis)).sum(1).mean(),
}


def probes(loss, kind: str = "picked") -> list[Probe]:
    """Train with a loss, and return the probes of one kind."""
    torch.manual_seed(0)
    model, inputs = nn.Linear(4, 3), torch.randn(5, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder("x") as recorder:
        for _ in range(4):
            optimizer.zero_grad()
            loss(model(inputs)).backward()
            optimizer.step()
    assert "picked" in recorder.trace.conditions["looked"]
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe == kind]


@pytest.mark.parametrize("name", LOSSES)
def test_another_axis_is_told(name: str) -> None:
    """A softmax over the samples is, with the axis that classes are picked along."""
    (probe,) = probes(lambda z: LOSSES[name](z, 0))
    assert (probe.measured, probe.reference) == (3, 3)
    assert probe.label == "axis 0 of (5, 3), classes along 1"


@pytest.mark.parametrize("name", LOSSES)
def test_the_same_axis_is_not(name: str) -> None:
    """A softmax over the classes is silent."""
    assert probes(lambda z: LOSSES[name](z, 1)) == []


def test_whole_distributions_are_not() -> None:
    """Rows that are gathered for all classes at once say nothing of an axis."""
    rows = torch.tensor([[3, 3, 3]])

    def loss(z: torch.Tensor) -> torch.Tensor:
        """Pick from one row that is gathered as a whole, and from all."""
        logs = z.log_softmax(1)
        return -logs.gather(0, rows)[0, 0] - logs.gather(1, LABELS[:, None]).mean()

    assert probes(loss) == []


def test_distributions_of_what_was_done_are_not() -> None:
    """Those of one action of each sample, over returns, are picked along the actions."""
    returns = torch.rand(5, 6).softmax(1)

    def loss(z: torch.Tensor) -> torch.Tensor:
        """Return the cross-entropy of returns, as of a Q that is a distribution."""
        of_actions = (z[:, :, None] * torch.linspace(0, 1, 6)).softmax(2)
        return -(returns * of_actions[range(5), LABELS].clamp_min(1e-5).log()).sum(1).mean()

    assert probes(loss) == []


def test_a_softmax_of_a_softmax_is_told() -> None:
    """It is where the second is a logarithm; logits that are scaled before it are no softmax."""
    (probe,) = probes(lambda z: LOSSES["gathered"](z.softmax(1), 1), "twice")
    assert (probe.measured, probe.reference) == (3, 3)
    assert probe.label == "softmax"
    assert probes(lambda z: LOSSES["gathered"](z.softmax(1) * 20, 1), "twice") == []


def test_a_sigmoid_of_a_sigmoid_is_told() -> None:
    """Also of its parts, and as a logarithm; a factor between is a temperature."""
    for again in (torch.sigmoid, nn.functional.logsigmoid, lambda p: p[:, :2].sigmoid()):
        (probe,) = probes(lambda z, again=again: again(z.sigmoid()).mean(), "twice")
        assert probe.label == "sigmoid"
        assert probe.measured == probe.reference > 1
    for sound in (lambda z: (z.sigmoid() * 4 - 2).sigmoid(), lambda z: z.sigmoid().log()):
        both = lambda z, sound=sound: sound(z).mean() - z.log_softmax(1)[:, 0].mean()  # noqa: E731
        assert probes(both, "twice") == []


@pytest.mark.parametrize("name", LOSSES)
def test_no_softmax_is_kept_for_what_is_read_at_the_end(name: str) -> None:
    """Of each look only a few numbers are: softmaxes of a language model are large."""
    loss = LOSSES[name](torch.randn(5, 3, requires_grad=True), 1)
    kinds = {autograd_graph.kind_of(n): n for n in autograd_graph.below(loss.grad_fn, 64)}
    ((node, reader),) = ((kinds[kind], _READERS[kind]) for kind in _READERS if kind in kinds)
    softmax = torch.zeros(5, 3)
    gone = weakref.ref(softmax)
    reading = reader(node, softmax, 1)
    del softmax
    assert reading is not None
    assert gone() is None
