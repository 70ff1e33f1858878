"""The probe of how a loss treats its batch: it decides how thousands of points become one call."""

import warnings

import pytest
import torch
from torch.nn import functional

import trainguard as tg
from trainguard.observe.loss.evaluate import Mode

X = tg.real("B D", -3, 3)
ONE_INPUT = {
    "one per sample": (lambda x: x.square().sum(1), Mode.ROWS),
    "one per element": (lambda x: x.square(), Mode.ROWS),
    "sum": (lambda x: x.square().sum(), Mode.SUM),
    "mean": (lambda x: x.square().mean(), Mode.MEAN),
    "mean of norms": (lambda x: x.norm(dim=1).mean(), Mode.MEAN),
    "coupled by a norm": (lambda x: x.norm(), Mode.VMAP),
    "coupled by a softmax": (lambda x: x.softmax(0).square().sum(), Mode.VMAP),
    "a stack that mixes": (lambda x: (x - x.mean(0)).square().sum(1), Mode.VMAP),
    "a clamp after the mean": (lambda x: x.square().mean().clamp(max=4.0), Mode.VMAP),
    "a rare clamp after the mean": (lambda x: x.square().mean().clamp(max=8.9), Mode.VMAP),
    "a log after the sum": (lambda x: x.square().sum().log1p(), Mode.VMAP),
    "normalised over the batch": (lambda x: (x / x.abs().max()).sum(), Mode.VMAP),
    "a Python branch": (lambda x: x.sum() if float(x.norm()) > 1 else x.square().sum(), Mode.LOOP),
    "a shape from values": (lambda x: x[x > x.mean()].sum() + x.norm(), Mode.LOOP),
}


@pytest.mark.parametrize("name", ONE_INPUT)
def test_the_mode_is_found(name: str, made) -> None:
    """Each way to treat a batch is told from the others, in every dtype that can tell."""
    function, mode = ONE_INPUT[name]
    assert made(function, x=X).mode is mode
    assert made(function, x=X, dtype=torch.float32).mode is mode


def test_vmap_that_computes_in_another_precision_is_not_used(made) -> None:
    """Targets in float32 make a mean of their own under vmap; that is no error."""

    def loss(x, y):
        return functional.binary_cross_entropy_with_logits(x, y.float()) * x.norm()

    assert made(loss, x=X, y=tg.integer("B D", 0, 1)).mode is Mode.LOOP


@pytest.mark.parametrize("name", ["one per sample", "sum", "mean"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_is_batched_too(name: str, dtype: torch.dtype, made) -> None:
    """A batch is one call in low precision, but for a mean whose share would underflow."""
    function, mode = ONE_INPUT[name]
    underflows = dtype is torch.float16 and mode is Mode.MEAN
    assert made(function, x=X, dtype=dtype).mode is (Mode.LOOP if underflows else mode)


def under_vmap(x) -> bool:
    """Say whether a loss is called through vmap."""
    return torch._C._functorch.is_batchedtensor(x)


@pytest.mark.parametrize("name", ["another value", "slow", "nothing"])
def test_vmap_is_checked(name: str, made) -> None:
    """Where vmap gives another value than single calls, or says that it is slow, it is not used."""

    def coupled(x):
        if under_vmap(x) and name == "slow":
            warnings.warn("There is a performance drop because ...", UserWarning, stacklevel=1)
        return x.norm() * (2 if under_vmap(x) and name == "another value" else 1)

    assert made(coupled, x=X).mode is (Mode.VMAP if name == "nothing" else Mode.LOOP)


def test_low_precision_is_never_vmapped(made) -> None:
    """Vmap replaces fused kernels by their steps, which round more often: a loop it is."""
    function, _ = ONE_INPUT["coupled by a norm"]
    assert made(function, x=X, dtype=torch.bfloat16).mode is Mode.LOOP


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_the_losses_of_torch(reduction: str, made) -> None:
    """Integer targets and optional arguments do not hide what the reduction is."""
    modes = {"none": Mode.ROWS, "sum": Mode.SUM, "mean": Mode.MEAN}
    evaluator = made(
        functional.cross_entropy,
        input=tg.real("B C", -9, 9),
        target=tg.integer("B", 0, "C-1"),
        inputs={"reduction": tg.choice(reduction)},
        arguments={"reduction": reduction},
    )
    assert evaluator.mode is modes[reduction]


def test_a_batch_axis_in_the_middle(made) -> None:
    """The batch dimension may stand anywhere in an input."""
    inputs = {"a": tg.real("T B", -1, 1), "b": tg.real("B T", -1, 1)}
    assert made(lambda a, b: (a.T * b).sum(1), **inputs).mode is Mode.ROWS
    assert made(lambda a, b: (a.T - b).square().mean(), **inputs).mode is Mode.MEAN


def test_an_input_without_a_batch_couples(made) -> None:
    """What is shared by all samples cannot be given to each of them in one call."""
    inputs = {"x": X, "table": tg.real("K D", -1, 1)}
    assert made(lambda x, table: (x @ table.T).sum(), **inputs).mode is Mode.VMAP


def test_a_batch_of_declared_size_is_kept(made) -> None:
    """Where `sizes` says how large a batch is, no call gets another one."""
    seen = set()

    def remember(x):
        seen.add(x.shape[0])
        return x.square().sum()

    assert made(remember, {"B": 3}, x=X, sizes={"B": (2, 4)}).mode is Mode.VMAP
    assert made(remember, {"B": 3}, x=X, whole=True).mode is Mode.VMAP
    assert seen == {3}


def test_a_loss_that_refuses_a_large_batch(made) -> None:
    """A loss that raises above the declared sizes is given batches of the declared sizes."""

    def small(x):
        if x.shape[0] > 4:
            raise ValueError("at most four")
        return x.square().sum()

    assert made(small, {"B": 3}, x=X).mode is Mode.VMAP


def test_a_loss_that_refuses_a_batch_of_one(made) -> None:
    """A loss that needs partners in its batch gets those that were drawn."""

    def paired(x):
        if x.shape[0] < 2:
            raise ValueError("a pair, please")
        return (x[0] - x[1]).square().sum()

    evaluator = made(paired, {"B": 3}, x=X)
    assert (evaluator.mode, evaluator.box.sizes["B"]) == (Mode.VMAP, 3)


def test_points_without_a_finite_loss_decide_nothing(made) -> None:
    """A loss that is nan everywhere is evaluated point by point."""
    assert made(lambda x: (x * torch.nan).sum(), x=X).mode is Mode.VMAP


def test_a_rounding_loss_is_no_coupled_one(made) -> None:
    """A sum of large terms is a sum in float32, whatever rounding does to its last digits."""
    evaluator = made(lambda x: (1e4 * x).square().sum(), x=X, dtype=torch.float32)
    assert evaluator.mode is Mode.SUM
