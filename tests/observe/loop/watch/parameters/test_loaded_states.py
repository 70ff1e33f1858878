"""States that are loaded under the recorder, in every way that torch takes them."""

import copy

import pytest
import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder


def test_a_state_may_be_given_by_its_name() -> None:
    """As `state_dict=`, which is what torch's own parameter is called."""
    net, other = nn.Linear(3, 1), nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with Recorder("x") as recorder:
        net.load_state_dict(state_dict=other.state_dict(), strict=True)
        optimizer.load_state_dict(state_dict=optimizer.state_dict())
    assert torch.equal(net.weight, other.weight)
    assert recorder.trace.conditions.get("faults", ()) == ()


class Wrapped(nn.Module):
    """A layer under another name."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base = base


def build(*, frozen: bool, wrapped: bool = True, width: int = 4) -> nn.Sequential:
    """Return two layers, the first of them wrapped and frozen if that is wanted."""
    first = nn.Linear(width, width).requires_grad_(not frozen)
    return nn.Sequential(Wrapped(first) if wrapped else first, nn.Linear(4, 1))


@pytest.mark.filterwarnings("ignore:for .* copying from a non-meta parameter:UserWarning")
@pytest.mark.parametrize(
    ("model", "told"),
    [
        (build(frozen=True), [(2.0, 2.0)]),
        (build(frozen=False), []),
        (build(frozen=True, wrapped=False), []),
        (build(frozen=True, width=5), []),
        (build(frozen=True).to("meta"), []),
    ],
    ids=["frozen", "trained", "same names", "another shape", "meta"],
)
def test_frozen_layers_that_a_wrapper_renamed(model: nn.Module, told: list) -> None:
    """They are told with the name in the state; what is learned, or is another layer, is not."""
    state = build(frozen=False, wrapped=False).state_dict()
    with Recorder("x") as recorder:
        model.load_state_dict(state, strict=False)
    probes = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "renamed"]
    assert [(probe.measured, probe.reference) for probe in probes] == told
    assert recorder.trace.conditions.get("faults", ()) == ()
    if probes:
        assert probes[0].label == "Sequential has `0.base.weight`, the state `0.weight`"


def test_frozen_layers_that_had_it_before() -> None:
    """What was loaded before it was wrapped lacks nothing."""
    model = build(frozen=True, wrapped=False)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model[0] = Wrapped(model[0])
    with Recorder("x") as recorder:
        model.load_state_dict(state, strict=False)
    assert not [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "renamed"]


class SelfMade(nn.Module):
    """A vector that is made of the first batch; `edit` is what else a pass does to it."""

    def __init__(self, edit=None) -> None:
        super().__init__()
        self.shift, self.edit, self.made = nn.Parameter(torch.zeros(3)), edit, False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Make the vector at the first batch, and edit it at each."""
        if not self.made and self.edit is None:
            self.shift.data.copy_(x.mean(0))
        self.made = True
        if self.edit is not None:
            self.edit(self.shift.data)
        return x - self.shift


@pytest.mark.parametrize(
    ("edit", "loaded", "count"),
    [
        (None, [1.0, -2.0, 3.0], 1),
        (None, [0.0, 0.0, 0.0], 0),
        (lambda value: value.mul_(4), [1.0, -2.0, 3.0], 0),
        (lambda value: value.clamp_(-1, 1), [1.0, -2.0, 3.0], 0),
    ],
    ids=["made again", "nothing loaded", "scaled", "bounded"],
)
def test_what_is_loaded_and_overwritten(edit, loaded: list[float], count: int) -> None:
    """A pass that makes the vector anew is told; one that only bounds it is not."""
    with Recorder("x") as recorder, torch.no_grad():
        net = SelfMade(edit)
        net.load_state_dict({"shift": torch.tensor(loaded)})
        net(torch.randn(8, 3) + 1)
        net(torch.randn(8, 3) + 1)
    probes = [event for event in recorder.trace if isinstance(event, Probe)]
    assert [probe.label for probe in probes] == ["shift of SelfMade"] * count
    assert "overwritten" in recorder.trace.conditions["looked"]


def test_what_is_loaded_after_a_long_run() -> None:
    """The first pass after a load is seen where steps are no longer watched."""
    net = nn.Sequential(SelfMade(), nn.Linear(3, 1))
    with Recorder("x") as recorder:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for _ in range(40):
            optimizer.zero_grad()
            net(torch.randn(8, 3)).square().mean().backward()
            optimizer.step()
        recorder.patches.watching = False
        other = nn.Sequential(SelfMade(), nn.Linear(3, 1))
        other.load_state_dict(net.state_dict())
        other(torch.randn(8, 3) + 5)
    probes = [event for event in recorder.trace if isinstance(event, Probe)]
    assert [p.label for p in probes if p.probe == "overwritten"] == ["0.shift of Sequential#2"]


def test_states_that_are_kept() -> None:
    """They are told by line, with the one that is loaded again from wherever it was."""
    net = nn.Linear(3, 1)
    with Recorder("x") as recorder:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(5):
            net(torch.ones(2, 3)).square().sum().backward()
            optimizer.step()
            if step in (1, 3):
                state = {name: value.clone() for name, value in net.state_dict().items()}
        net.load_state_dict(state)
    (probe,) = (e for e in recorder.trace if isinstance(e, Probe) and e.probe == "kept")
    assert (probe.label, probe.measured, probe.reference) == ("2 4", 4.0, 5.0)


@pytest.mark.parametrize("loads", [False, True])
def test_states_that_are_left(loads: bool) -> None:
    """Nothing is loaded after the last of them, and no line reads one of the variables."""
    net, other = nn.Linear(3, 1), nn.Linear(3, 1)
    with Recorder("x") as recorder:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(5):
            net(torch.ones(2, 3)).square().sum().backward()
            optimizer.step()
            if step in (1, 3):
                best = copy.deepcopy(net.state_dict())  # noqa: F841
                saved = net.state_dict()
        if loads:
            other.load_state_dict(saved)
    assert recorder.trace.conditions.get("faults", ()) == ()
    probes = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "left"]
    assert [(p.label, p.measured) for p in probes] == ([] if loads else [("2 4", 1), ("2 4", 0)])


def _train_and_keep(copies: bool, steps: int) -> tuple[nn.Module, list[dict[str, torch.Tensor]]]:
    """Return a model and its states after each step, copied or as they are."""
    net, states = nn.Linear(3, 1), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(steps):
        net(torch.ones(2, 3)).square().sum().backward()
        optimizer.step()
        state = net.state_dict()
        states.append({name: value.clone() if copies else value for name, value in state.items()})
    return net, states


def _average(states: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Return the mean of states."""
    return {name: sum(s[name] / len(states) for s in states) for name in states[0]}


@pytest.mark.parametrize(
    ("copies", "steps", "certain"),
    [(False, 7, [1.0]), (False, 4, [0.0]), (True, 7, [])],
    ids=["rounded", "perhaps a copy", "copies"],
)
def test_a_mean_of_states_that_are_one(copies: bool, steps: int, certain: list[float]) -> None:
    """What is equal but for rounding was computed; what is equal may have been copied."""
    torch.manual_seed(0)
    with Recorder("x") as recorder:
        _, states = _train_and_keep(copies, steps)
        nn.Linear(3, 1).load_state_dict(_average(states))
    probes = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "one memory"]
    assert [probe.reference for probe in probes] == certain
    assert recorder.trace.conditions.get("faults", ()) == ()


@pytest.mark.parametrize(("copies", "count"), [(False, 1), (True, 0)])
def test_states_that_are_loaded_one_after_another(copies: bool, count: int) -> None:
    """The second one tells, where no step came between."""
    with Recorder("x") as recorder:
        _, states = _train_and_keep(copies, 3)
        for state in states:
            nn.Linear(3, 1).load_state_dict(state)
    probes = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "one memory"]
    assert [probe.reference for probe in probes] == [1.0] * count


def test_the_last_of_states_that_are_one_is_loaded() -> None:
    """It is what it seems to be, whatever the others are."""
    with Recorder("x") as recorder:
        net, states = _train_and_keep(False, 3)
        nn.Linear(3, 1).load_state_dict(states[-1])
        nn.Linear(3, 1).load_state_dict(net.state_dict())
    assert not [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "one memory"]


@pytest.mark.parametrize("copies", [False, True])
def test_a_state_whose_tensors_are_detached_is_still_the_model(copies: bool) -> None:
    """Detached and moved to where they are; copies are others."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder("x") as recorder:
        for _ in range(3):
            state = {k: v.detach().cpu() for k, v in model.state_dict().items()}
            state = {k: v.clone() for k, v in state.items()} if copies else state
            model(torch.randn(4, 3)).square().mean().backward()
            optimizer.step()
        model.load_state_dict(state)
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "restored"]
    assert [probe.measured for probe in found] == ([] if copies else [1.0])


def loads(line: int) -> list[tuple[float, float]]:
    """Load a state in one of some ways, at once; return what is told."""
    torch.manual_seed(0)
    first, second = nn.Linear(3, 1), nn.Linear(3, 1)
    with Recorder("x") as recorder:
        if line == 0:
            second.load_state_dict(second.state_dict())
        elif line == 1:
            second.load_state_dict(second.state_dict(), strict=True)
        elif line == 2:
            own = second.state_dict()
            second.load_state_dict(own)
        else:
            second.load_state_dict(first.state_dict())
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "restored"]
    return [(probe.measured, probe.reference) for probe in found]


def test_a_state_that_is_loaded_into_its_own_module() -> None:
    """By one statement: what is kept in between may be edited."""
    assert loads(0) == loads(1) == [(0, 1)]
    assert loads(2) == [(0, 0)]
    assert loads(3) == []


@pytest.mark.parametrize(
    ("times", "apart", "expected"),
    [(1, False, [(0, 0)]), (2, False, [(0, 0), (0, 1)]), (2, True, [(0, 0), (0, 0)])],
)
def test_a_second_name_that_is_brought_up_to_date(times: int, apart: bool, expected: list) -> None:
    """Once it may be meant; at two steps somebody takes it for a copy, in one statement."""
    online = nn.Linear(3, 1)
    target = online
    optimizer = torch.optim.SGD(online.parameters(), lr=0.1)
    with Recorder("x") as recorder:
        for _ in range(times):
            (online(torch.randn(4, 3)) - target(torch.randn(4, 3))).square().mean().backward()
            optimizer.step()
            if apart:
                state = online.state_dict()
                target.load_state_dict(state)
            else:
                target.load_state_dict(online.state_dict())
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "restored"]
    assert [(probe.measured, probe.reference) for probe in found] == expected
