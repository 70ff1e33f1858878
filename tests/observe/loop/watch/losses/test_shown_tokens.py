"""Tokens that are hidden from a model, and those that are not."""

import pytest
import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.losses.shown_tokens import _read_tokens

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


def masked_later(tokens, chosen):
    """Mask what the labels are a second name of."""
    return tokens.masked_fill_(chosen & (torch.rand(tokens.shape) < 0.9), BLANK), tokens


def masked_rightly(tokens, chosen):
    """Keep a copy of the tokens as labels."""
    return masked_later(tokens.clone(), chosen)[0], tokens


def unmasked(tokens, chosen):
    """Hide nothing, as where a code in between is to hold it all."""
    del chosen
    return tokens, tokens


def separated(tokens, chosen):
    """Learn what stands in some places, of which most hold a token that comes elsewhere too."""
    hidden = chosen & (torch.rand(tokens.shape) < 0.9)
    return tokens.masked_fill_(hidden | (torch.rand(tokens.shape) < 0.2), BLANK), tokens


def masked_wholly(tokens, chosen):
    """Mask all that is chosen, as other evidence tells."""
    return tokens.masked_fill_(chosen, BLANK), tokens


def of_few_words(tokens, chosen):
    """Mask rows of four tokens, which may be anything."""
    return masked_later(tokens % 4, chosen)


def of_one_word(tokens, chosen):
    """Hide, rightly, what is nearly always one token that stands in no other place."""
    tokens = tokens.where(tokens != 7, 8)
    labels = tokens.masked_fill(chosen & (torch.rand(tokens.shape) < 0.9), 7)
    return labels.masked_fill(chosen, BLANK), labels


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (masked_later, [True]),
        (masked_rightly, []),
        (unmasked, []),
        (separated, []),
        (of_few_words, []),
        (of_one_word, []),
        (masked_wholly, []),
    ],
)
def test_targets_that_are_what_hides_them(make, expected: list[bool], flat: bool) -> None:
    """Of places that were picked, all are shown, and most are a token that is nowhere else."""
    torch.manual_seed(0)
    with Recorder("x") as recorder:
        model = nn.Sequential(nn.Embedding(WORDS + 1, 8), nn.Linear(8, WORDS + 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            chosen = torch.rand(16, 12) < 0.3
            given, labels = make(torch.randint(WORDS, (16, 12)), chosen)
            scores = model(given)
            scores = scores.flatten(0, 1)[chosen.flatten()] if flat else scores[chosen]
            nn.functional.cross_entropy(scores, labels[chosen]).backward()
            optimizer.step()
    assert recorder.trace.conditions.get("faults", ()) == ()
    assert "covered" in recorder.trace.conditions["looked"]
    probes = [event for event in recorder.trace if isinstance(event, Probe)]
    assert [p.label == f"token {BLANK}" for p in probes if p.probe == "covered"] == expected


def test_places_on_an_accelerator_are_not_waited_for() -> None:
    """Nothing is read of targets that were picked there."""
    given, target = torch.randint(WORDS, (16, 12)), torch.zeros(5).long()
    scores = torch.zeros(16, 12, 3, device="meta", requires_grad=True)
    rows = torch.zeros(5, dtype=torch.long, device="meta")
    assert _read_tokens(given, scores[rows, rows], target) is None


def test_few_targets_that_are_picked_are_no_evidence() -> None:
    """Less than 64 in all are not judged, and rows without an index are left alone."""
    torch.manual_seed(0)
    with Recorder("x") as recorder:
        model = nn.Sequential(nn.Embedding(WORDS + 1, 8), nn.Linear(8, WORDS + 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        chosen = torch.rand(16, 12) < 0.2
        given, labels = masked_later(torch.randint(WORDS, (16, 12)), chosen)
        nn.functional.cross_entropy(model(given)[chosen], labels[chosen]).backward()
        nn.functional.cross_entropy(model(given)[:, 0], labels[:, 0]).backward()
        optimizer.step()
    assert recorder.trace.conditions.get("faults", ()) == ()
    assert not any(isinstance(e, Probe) and e.probe == "covered" for e in recorder.trace)
