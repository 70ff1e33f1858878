"""Trainings that cannot be resumed, or not be compared: what each of them is told."""

import os
import random
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import trainguard as tg
from trainguard.core.errors import SubjectError, Unjudged
from trainguard.core.settings import Settings
from trainguard.events.checkpoint import Departure, Load, Part, Resumption
from trainguard.events.trace import Trace
from trainguard.judging.judge import Observations
from trainguard.judging.verdict import Config


def observed(subject: tg.Checkpoint, probe: str = "resume") -> Trace:
    """Return the trace of one probe."""
    return Observations(Settings()).of(subject, Config()).trace(probe)


def train(out_dir: Path, resume=False, flaw="", steps=6):
    """Fit a line, save every second step, and be flawed on demand."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    first, file = 0, out_dir / "last.pt"
    if flaw == "raises":
        raise OSError("no data")
    if resume:
        state = torch.load(file, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
    for step in range(first, 0 if flaw == "lazy" else steps):
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(step))
        x = x + (random.SystemRandom().random() if flaw == "random" else 0.0)
        optimizer.zero_grad()
        (model(x) - 1).square().mean().backward()
        optimizer.step()
        if (flaw, step) == ("late", 8):
            kept = model.weight.detach().clone()
        if (flaw == "early" and step == 4 and first) or (flaw == "late" and step == 10 > first):
            model.weight.data = 2 * model.weight if flaw == "early" else kept
        if flaw == "hangs":
            time.sleep(60)
        if step % 2 == 1 and flaw != "forgetful":
            parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**parts, "step": step + 1}, file)
        if flaw == "ended":
            os._exit(7)


def test_a_run_is_killed_resumed_and_compared() -> None:
    """Three processes have the steps that one has."""
    trace = observed(tg.Checkpoint(train))
    (told,) = [event for event in trace if isinstance(event, Resumption)]
    assert (told.saved, told.began, told.made, told.left, told.ended) == (2, 2, 4, 4, True)
    parts = {event.kind: event for event in trace if isinstance(event, Part)}
    assert all(part.same for part in parts.values() if part.kind != "generator")
    assert (parts["parameters"].of, parts["optimizer"].of) == (2, 2)
    departures = [event for event in trace if isinstance(event, Departure)]
    assert [(d.step, d.compared) for d in departures] == [(-1, 4)] * 4
    assert [event for event in trace if isinstance(event, Load)] == []


@pytest.mark.parametrize(("flaw", "saved"), [("early", 2), ("late", 10), ("", 6)])
def test_it_is_killed_early_and_late_too(flaw: str, saved: int) -> None:
    """What is forgotten in a warmup, or is there at the end alone, is the same in the middle."""
    trace = observed(tg.Checkpoint(train, arguments={"flaw": flaw, "steps": 12}))
    (told,) = [event for event in trace if isinstance(event, Resumption)]
    departures = [event.step for event in trace if isinstance(event, Departure)]
    assert (told.saved, max(departures) >= 0) == (saved, bool(flaw))


def test_steps_may_be_limited() -> None:
    """A run that is cut short has no end of its own."""
    trace = observed(tg.Checkpoint(train, steps=4, arguments={"steps": 1000}))
    (told,) = [event for event in trace if isinstance(event, Resumption)]
    assert (told.saved, told.made, told.ended) == (2, 2, False)


@pytest.mark.parametrize(
    ("flaw", "words"),
    [
        ("raises", "it raised OSError: no data after 0 steps"),
        ("lazy", "it made no optimizer step"),
        ("forgetful", "it wrote nothing into its folder before the last of its 6 steps"),
        ("ended", "its process ended with exit code 7"),
        ("hangs", "it was still running after 1 seconds"),
    ],
)
def test_what_cannot_be_observed(flaw: str, words: str) -> None:
    """One sentence says what the training did."""
    timeout = 1.0 if flaw == "hangs" else 60.0
    with pytest.raises(SubjectError) as raised:
        observed(tg.Checkpoint(train, arguments={"flaw": flaw}, timeout=timeout))
    assert words in raised.value.sentence


def test_a_run_that_does_not_repeat_itself_is_not_judged() -> None:
    """What differs after the resume may differ for other reasons."""
    with pytest.raises(Unjudged, match="two runs from the same seed part before step"):
        observed(tg.Checkpoint(train, arguments={"flaw": "random"}))


def test_one_save_cannot_be_interrupted() -> None:
    """There would be no other one to keep."""
    with pytest.raises(Unjudged, match="it saves once"):
        observed(tg.Checkpoint(train, arguments={"steps": 3}), "interrupt")


def test_an_interrupted_save_is_cut_at_half_its_size() -> None:
    """The file is written in place, so that it cannot be read."""
    _, cut = observed(tg.Checkpoint(train), "interrupt")
    assert cut.limit == cut.size // 2 > 0
    assert cut.error


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch) -> None:
    """The folder of the runs goes with the observation; the parent's generators stay."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = torch.get_rng_state(), random.getstate()
    trace = observed(tg.Checkpoint(train))
    assert len(trace) > 0
    assert list(tmp_path.iterdir()) == []
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
