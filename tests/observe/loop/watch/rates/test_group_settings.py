"""What the groups of an optimizer are made with."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

Make = Callable[[nn.Module], torch.optim.Optimizer]


def probes(make: Callable[[nn.Module], torch.optim.Optimizer], name: str) -> list[Probe]:
    """Make two steps with an optimizer, and return what was taken down of it."""
    model = nn.Linear(4, 2)
    with Recorder("x") as recorder:
        optimizer = make(model)
        for _ in range(2):
            model(torch.randn(3, 4)).square().mean().backward()
            optimizer.step()
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe == name]


def two(model: nn.Module, first: float, second: float) -> list[dict[str, object]]:
    """Return two groups with rates."""
    return [{"params": [model.weight], "lr": first}, {"params": [model.bias], "lr": second}]


def test_rates_are_those_before_a_schedule() -> None:
    """One cycle changes them when it is made."""

    def make(model: nn.Module) -> torch.optim.Optimizer:
        """Return an optimizer whose rates a scheduler has changed."""
        optimizer = torch.optim.SGD(two(model, 0.1, 0.01))
        torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=9)
        return optimizer

    (probe,) = probes(make, "group rates")
    assert (probe.measured, probe.reference, probe.label) == (0.1, 0.01, "SGD")
    assert Path(probe.source.rpartition(":")[0]) == Path(__file__)


def test_nothing_is_told_of_one_group_or_of_groups_that_were_added() -> None:
    """What is added later has a rate of its own."""

    def make(model: nn.Module) -> torch.optim.Optimizer:
        """Return an optimizer with a group that was added."""
        optimizer = torch.optim.SGD([model.weight], lr=0.1)
        optimizer.add_param_group({"params": [model.bias], "lr": 0.01})
        return optimizer

    assert probes(make, "group rates") == []
    assert probes(lambda model: torch.optim.SGD(model.parameters(), lr=0.1), "group rates") == []


@pytest.mark.parametrize(("key", "told_apart"), [("fixed", True), ("name", False)])
def test_groups_with_keys_of_their_own(key: str, told_apart: bool) -> None:
    """A formula may tell them apart, but for their names."""

    def make(model: nn.Module) -> torch.optim.Optimizer:
        """Return an optimizer whose second group has a key."""
        first, second = two(model, 0.1, 0.1)
        return torch.optim.SGD([first, {**second, key: True}])

    (probe,) = probes(make, "group rates")
    assert (probe.step == -1) is told_apart


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('opt.param_groups[0]["lr"] = 0.1', 1),
        ("opt.param_groups[0]['lr'] *= 0.1", 1),
        ('rate = opt.param_groups[0]["lr"]', 0),
        ('if opt.param_groups[0]["lr"] == 0.1: pass', 0),
        ('# opt.param_groups[0]["lr"] = 0.1', 0),
    ],
)
def test_lines_that_set_the_first_group_alone(line: str, expected: int, tmp_path: Path) -> None:
    """Reading it, comparing it, and a comment do not."""
    script = tmp_path / "train.py"
    script.write_text(f"opt = SGD(groups)\ndef later(opt):\n    {line}\n    return\n")
    model, known = nn.Linear(4, 2), {}
    with Recorder("x") as recorder:
        own = {"SGD": torch.optim.SGD, "groups": two(model, 0.1, 0.1)}
        exec(compile(script.read_text(), str(script), "exec"), own, known)
        for _ in range(2):
            model(torch.randn(3, 4)).square().mean().backward()
            known["opt"].step()
    (probe,) = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "group rates"]
    assert probe.step == expected


def test_betas_of_those_that_divide() -> None:
    """Each group of them has its own; others have none, or another kind of average."""
    (probe,) = probes(lambda m: torch.optim.AdamW(m.parameters(), betas=(0.99, 0.5)), "betas")
    assert (probe.measured, probe.reference, probe.label) == (0.99, 0.5, "AdamW, group 0")
    assert probes(lambda m: torch.optim.AdamW(m.parameters(), betas=(0.9, 0.9)), "betas") == []
    assert probes(lambda m: torch.optim.Adamax(m.parameters()), "betas") == []
    assert probes(lambda m: torch.optim.SGD(m.parameters(), lr=0.1), "betas") == []


def unread(set_rate: Callable[[torch.optim.Optimizer], None], make: Make) -> list[str]:
    """Make steps around a line that sets a rate, and return where it is that nothing reads."""
    model = nn.Linear(4, 2)
    with Recorder("x") as recorder:
        optimizer = make(model)
        for _ in range(3):
            model(torch.randn(3, 4)).square().mean().backward()
            optimizer.step()
            set_rate(optimizer)
    assert recorder.trace.conditions.get("faults", ()) == ()
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "unread setting"]
    return [probe.label for probe in found]


def _attribute(optimizer: torch.optim.Optimizer) -> None:
    """Set an attribute."""
    optimizer.lr = 0.01


def _default(optimizer: torch.optim.Optimizer) -> None:
    """Set a default, of which no group is made any more."""
    optimizer.defaults["lr"] = 0.01


def _group(optimizer: torch.optim.Optimizer) -> None:
    """Set what is in force, and say so."""
    optimizer.lr = optimizer.param_groups[0]["lr"] = 0.01


def _nothing(_: torch.optim.Optimizer) -> None:
    """Set nothing."""


def one(model: nn.Module) -> torch.optim.Optimizer:
    """Return an optimizer of one group."""
    return torch.optim.SGD(model.parameters(), lr=0.1)


def keyed(model: nn.Module) -> torch.optim.Optimizer:
    """Return one whose group has a key that nobody reads."""
    groups = [{"params": model.parameters(), "learning_rate": 0.01}]
    return torch.optim.SGD(groups, lr=0.1)


@pytest.mark.parametrize(
    ("set_rate", "make", "expected"),
    [
        (_attribute, one, ["SGD.lr"]),
        (_default, one, ['SGD.defaults["lr"]']),
        (_nothing, keyed, ['SGD.param_groups[0]["learning_rate"]']),
        (_group, one, []),
        (_nothing, one, []),
    ],
)
def test_rates_that_nothing_reads_are_told(set_rate, make, expected) -> None:
    """Attributes, defaults and keys; not what is in force as well."""
    assert unread(set_rate, make) == expected
