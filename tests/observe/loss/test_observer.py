"""The observation of a loss: one trace for each probe, and the smallest case of a finding."""

import time

import pytest
import torch

import trainguard as tg
from trainguard.core.catalogue import catalogue, find_invariants
from trainguard.core.errors import SubjectError, Unjudged
from trainguard.core.finding import Finding
from trainguard.core.settings import Settings
from trainguard.observe.loss.observer import LossObservation, observe

X = {"x": tg.real("B D", -2, 2)}
QUICK = Settings(profile="quick")


def observed(function: object, settings: Settings = QUICK, **declared: object) -> LossObservation:
    """Return the observation of a loss."""
    return observe(tg.Loss(function, **{**X, **declared}), "cpu", "float32", settings)


def found(seen: LossObservation, name: str) -> Finding:
    """Return the first finding of an invariant at its smallest case."""
    made = find_invariants(name)[0]
    first = next(iter(made.judge(seen.trace(made.probe))))
    return seen.shrink(first, made.judge)


def leak(x):
    """Return a loss whose untaken branch leaks a nan."""
    return torch.where(x > 0, x.abs().sqrt(), x).sum()


def test_a_trace_has_its_conditions() -> None:
    """Device, dtype, torch, seed and threads stand in the header, and the promises."""
    seen = observed(leak, Settings(profile="quick", seed=5), limits={"gradient_is_bounded": 9})
    trace = seen.trace("sweep")
    assert dict(trace.conditions) == {
        "device": "cpu", "dtype": "float32", "torch": torch.__version__, "seed": 5, "threads": 1,
    }  # fmt: skip
    assert (trace.subject, trace.promise("magnitude:x")) == ("leak", 2.0)
    assert trace.limit("gradient_is_bounded", 1.0) == 9.0
    assert seen.points == sum(s.points for s in trace if s.quantity == "value")


def test_a_trace_is_observed_once() -> None:
    """Asked again, an observation gives the same trace."""
    seen = observed(leak)
    assert seen.trace("sweep") is seen.trace("sweep")


def test_the_same_seed_sees_the_same() -> None:
    """A trace follows from the seed, and so does what is shrunk from it."""
    first, again = (observed(leak) for _ in range(2))
    assert repr(first.trace("sweep")) == repr(again.trace("sweep"))
    smallest = [repr(found(seen, "gradient_is_finite")) for seen in (first, again)]
    assert smallest[0] == smallest[1]


def test_the_smallest_case() -> None:
    """The smallest sizes and the roundest numbers at which the judge objects, as a call."""
    finding = found(observed(leak), "gradient_is_finite")
    assert finding.smallest == "leak(x=torch.tensor([[0.]]))"
    assert finding.at == "x[0, 0]"


def test_the_smallest_sizes() -> None:
    """Where one sample of one element shows nothing, the smallest sizes that do are found."""

    def third(x):
        return (1 / (x[:, 2:].abs() + 1e-9)).sum() if x.shape[1] > 2 else x.sum()

    finding = found(observed(third, sizes={"D": (1, 6)}), "gradient_is_bounded")
    assert finding.smallest.startswith("third(x=torch.tensor([[0., 0., ")
    assert finding.at == "x[0, 2]"
    assert finding.smallest.count(",") == 2


def test_the_pasted_call_shows_it() -> None:
    """The call that is told does what is told of it."""
    finding = found(observed(leak), "gradient_is_finite")
    inner = finding.smallest.removeprefix("leak(x=").removesuffix(")")
    point = eval(inner, {"torch": torch}).requires_grad_()
    leak(point).backward()
    assert bool(point.grad.isnan().any())


def test_a_search_that_takes_too_long() -> None:
    """A finding whose smallest case is not found in time is told as it was seen."""
    slow = {"at": 1e9}

    def slowing(x):
        if time.perf_counter() > slow["at"]:
            time.sleep(60)
        return leak(x)

    seen = observed(slowing, timeout=1.0)
    made = find_invariants("gradient_is_finite")[0]
    first = next(iter(made.judge(seen.trace("sweep"))))
    slow["at"] = 0.0
    shrunk = seen.shrink(first, made.judge)
    assert shrunk.summary == first.summary
    assert shrunk.smallest.startswith("slowing(x=torch.")


def test_what_another_dtype_cannot_do_is_not_judged() -> None:
    """A loss that does not run in float64 is skipped by the probes that work in it."""

    def single(x):
        return (x @ torch.ones(x.shape[1], 1)).sum()

    seen = observed(single)
    assert len(seen.trace("sweep")) == 3
    for _ in range(2):
        with pytest.raises(Unjudged, match="the loss does not run in float64: it raised Runtime"):
            seen.trace("line")


def test_a_fault_is_told_again() -> None:
    """A loss that failed once is not called again for the same probe."""
    calls = []

    def failing(x):
        calls.append(1)
        raise ValueError("no")

    seen = observed(failing)
    with pytest.raises(SubjectError):
        seen.trace("sweep")
    count = len(calls)
    with pytest.raises(SubjectError, match="it raised ValueError: no"):
        seen.trace("sweep")
    assert len(calls) == count


FAULTS = {
    "at some sizes": (lambda x: x.sum() if x.shape[1] < 2 else None, "torch.zeros((1, 2))"),
    "in pairs": (lambda x: x.sum() if len(x) < 2 else None, "torch.zeros((2, 1))"),
    "for large numbers": (
        lambda x: x.sum() if float(x.detach().max()) < 1.5 else "oops",
        "torch.tensor([[2.]])",
    ),
    "everywhere": (lambda x: None, "torch.tensor([[0.]])"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_smallest_call_that_fails(name: str) -> None:
    """What stops an observation is shown by the simplest call that does it too."""
    function, point = FAULTS[name]
    seen = observed(function, name="bad", sizes={"D": (1, 3)})
    with pytest.raises(SubjectError) as caught:
        seen.trace("sweep")
    assert caught.value.call == f"bad(x={point})"


def test_a_fault_of_large_batches_only() -> None:
    """A batch that no declaration asks for is not held against the loss."""

    def small(x):
        assert len(x) <= 4
        return x.square().sum()

    assert len(observed(small).trace("sweep")) == 3


def test_conduct_has_its_calls() -> None:
    """What a call does besides is shown by that call."""

    def edits(x):
        return x.clamp_(-1, 1).sum()

    finding = found(observed(edits), "call_leaves_no_trace")
    assert finding.at == "x"
    assert finding.smallest.startswith("edits(x=torch.tensor([[0.")


def test_an_edited_input_does_not_spoil_the_sweep() -> None:
    """A loss that edits its inputs is handed copies, so that all else is judged."""
    values = {s.quantity: s for s in observed(lambda x: x.mul_(0.5).sum()).trace("sweep")}
    assert values["gradient"].measured == 0.5


@pytest.mark.parametrize("probe", ["sweep", "line", "conduct"])
def test_labels_that_a_loss_makes_floats_of(probe: str) -> None:
    """A loss that makes float32 of its labels has two dtypes where it is swept in float64."""
    inputs = {"x": tg.real("B N", -8, 8), "label": tg.integer("B N", 0, 1)}

    def loss(x, label):
        """Return the loss of scores."""
        return torch.nn.functional.binary_cross_entropy_with_logits(x, label.float())

    trace = observed(loss, **inputs).trace(probe)
    judges = [made.judge for made in catalogue("loss") if made.probe == probe]
    assert judges
    assert [finding for judge in judges for finding in judge(trace)] == []
