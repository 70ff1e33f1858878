"""Lines of the user's code that may explain what watchers have found."""

from pathlib import Path

import pytest

from trainguard.events.base import Event
from trainguard.events.fit import BaselineFit
from trainguard.events.loop import Evaluation, Term
from trainguard.events.parameter import Parameter
from trainguard.events.probe import Probe
from trainguard.observe.loop.explanations import find_origins

CODE = """\
model = Net().to(torch.bfloat16)
model.layer.requires_grad_(True)
x = x[torch.randperm(9)]
model.eval()
loss.backward()
p -= rate * p.grad
average.lerp_(p, 0.1)
y = y[torch.randperm(9)]
"""


def parameter(**columns: object) -> Parameter:
    """Return a parameter that gets gradients."""
    given = {"name": "Net.layer.weight", "received": 9, "moved": True, "held": True} | columns
    return Parameter(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([Probe(probe="labels", measured=1.0, source="train.py:9")], [("order of rows", 3, 8)]),
        ([Probe(probe="statistics", measured=1.0, source="train.py:9")], [("average", 7)]),
        ([Probe(probe="kept statistics", measured=1.0, source="train.py:9")], [("average", 7)]),
        ([Probe(probe="another", measured=1.0, source="train.py:9")], []),
        (
            [BaselineFit(function="f", source="train.py:9", learnable=0.0, evaluated=0.9)],
            [("order of rows", 3, 8)],
        ),
        ([BaselineFit(function="f", source="train.py:9", learnable=0.0)], []),
        ([Evaluation(step=1, source="train.py:9")], [("evaluation mode", 4)]),
        ([Evaluation(step=1, source="train.py:9", training=True)], []),
        ([Evaluation(step=1)], []),  # of which no line is known
        (
            [Term(function="f", source="train.py:9")],
            [("backward", 5), ("steps by hand", 6)],
        ),
        ([Term(function="f", source="train.py:9", evaluation=True)], []),
        ([parameter(source="train.py:9", moved=False)], [("cast", 1)]),
        ([parameter(source="train.py:9", moved=False, received=0)], []),
        ([parameter(source="train.py:9", thawed=True, held=False)], [("thawed", 2)]),
        ([parameter(source="train.py:9", thawed=True)], []),
        (
            [Term(function="f", source="train.py:9"), parameter(moved=False)],
            [("backward", 5), ("cast", 1), ("steps by hand", 6)],
        ),
    ],
)
def test_lines_are_told_of_what_was_found(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    found: list[Event],
    expected: list[tuple[str | int, ...]],
) -> None:
    """By what was found, from the file of its line, or of the losses."""
    (tmp_path / "train.py").write_text(CODE, "utf-8")
    monkeypatch.chdir(tmp_path)
    told = [(origin.name, origin.source) for origin in find_origins(found)]
    assert told == [(name, f"train.py:{line}") for name, *lines in expected for line in lines]
