"""Tokens that are hidden from a model, and those that are not."""

import pytest
import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

BLANK, WORDS = 20, 20


def all_count(tokens, hidden):
    """Learn every token."""
    return tokens.masked_fill(hidden, BLANK), tokens


def hidden_count(tokens, hidden):
    """Learn what is hidden, and a tenth that only might be."""
    chosen = hidden | (torch.rand(tokens.shape) < 0.02)
    return tokens.masked_fill(hidden, BLANK), tokens.masked_fill(~chosen, -100)


def exchanged(tokens, hidden):
    """Restore tokens that were exchanged for others."""
    return torch.where(hidden, torch.randint_like(tokens, WORDS), tokens), tokens


def shifted(tokens, hidden):
    """Predict the next token, some of those before unknown."""
    return tokens[:, :-1].masked_fill(hidden[:, 1:], BLANK), tokens[:, 1:]


@pytest.mark.parametrize("make", [all_count, hidden_count, exchanged, shifted])
def test_what_is_shown(make) -> None:
    """What is shown in its own place is counted, where a token hides the others."""
    torch.manual_seed(0)
    with Recorder("x") as recorder:
        model = nn.Sequential(nn.Embedding(WORDS + 1, 8), nn.Linear(8, WORDS + 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            tokens = torch.randint(WORDS, (16, 12))
            given, labels = make(tokens, torch.rand(tokens.shape) < 0.2)
            scores = model(given).flatten(0, 1)
            nn.functional.cross_entropy(scores, labels.reshape(-1)).backward()
            optimizer.step()
    probes = [event for event in recorder.trace if isinstance(event, Probe)]
    shares = [p.measured / p.reference for p in probes if p.probe == "shown"]
    most = [share > 0.5 for share in shares]
    assert most == {"all_count": [True], "hidden_count": [False]}.get(make.__name__, [])
