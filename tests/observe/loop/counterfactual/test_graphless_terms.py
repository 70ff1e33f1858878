"""What is added to a loss without a graph, and changes with what is learned."""

import pytest
import torch
from torch import nn

from trainguard.events.counterfactual import WhatIf
from trainguard.observe.loop.recorder import Recorder

QUESTION = "terms without a graph"


def ask(term_of) -> WhatIf | None:
    """Record four steps with a term beside the loss, and return the answer that says most."""
    torch.manual_seed(0)
    with Recorder("x") as recorder:
        net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for batch in torch.randn(4, 16, 4):
            optimizer.zero_grad()
            scores = net(batch)
            (scores.pow(2).mean() + term_of(net, batch, scores)).backward()
            optimizer.step()
    asked = [event for event in recorder.trace if isinstance(event, WhatIf)]
    answers = [e for e in asked if e.question == QUESTION and e.outcome == "answered"]
    return max(answers, key=lambda answer: answer.measured, default=None)


def weighed(net, batch, scores):
    """Return a cross-entropy with targets of its own, and their entropy."""
    shares = scores.detach().softmax(1)
    entropy = (shares * shares.log()).sum(1).mean()
    return entropy - (shares * scores.log_softmax(1)).sum(1).mean()


@pytest.mark.parametrize(
    "term_of",
    [
        lambda net, batch, scores: 0.1 * (scores > 0).float().mean(),
        lambda net, batch, scores: 1 - scores.argmax(1).bincount(minlength=3).max() / 16,
        lambda net, batch, scores: 1e-3 * net[0].weight.data.norm(),
        lambda net, batch, scores: 0.5 * scores.abs().mean().item(),
    ],
)
def test_terms_that_move_nothing(term_of) -> None:
    """Comparisons, counts, `.data` and `.item()` are other numbers with other parameters."""
    answer = ask(term_of)
    assert answer is not None
    assert (answer.measured, answer.reference) == (1.0, 1.0)
    assert answer.numbers[0] != answer.numbers[1]
    assert answer.smallest.startswith(__file__)


@pytest.mark.parametrize(
    "term_of",
    [
        lambda net, batch, scores: batch.pow(2).mean() + 0.9,
        lambda net, batch, scores: (3 - scores.mean()).detach(),
        weighed,
    ],
)
def test_constants_on_purpose(term_of) -> None:
    """What the inputs say, what is detached to be shown, and entropies of weights are no matter."""
    answer = ask(term_of)
    assert answer is None or answer.measured == 0


def test_nothing_to_ask() -> None:
    """Where all terms have a graph, nothing is asked."""
    assert ask(lambda net, batch, scores: scores.abs().mean()) is None
