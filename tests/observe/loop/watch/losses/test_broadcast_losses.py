"""Losses by hand that compare all outputs with all targets."""

import inspect

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.observe.loop.trainings import batches, network
from tests.torches import SHAPES
from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder


def train(loss, steps: int = 3, size: int = 16) -> None:
    """Train with a loss of outputs (size, 1) and targets (size,)."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for inputs, target in batches(steps, size):
        optimizer.zero_grad()
        loss(model(inputs), target.squeeze(1)).backward()
        optimizer.step()


def probes(loss, *, probe: bool = True, **options) -> list[Probe]:
    """Record a training and return its probes of this kind."""
    torch.manual_seed(0)
    with Recorder("x", probe=probe) as recorder:
        train(loss, **options)
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "broadcast"]


def clipped(out: torch.Tensor, y: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """Return the larger of two losses, one of them of outputs that stay near those of before."""
    near = before + (out - before).clamp(-0.2, 0.2)
    return 0.5 * torch.max((y - out) ** 2, (y - near) ** 2).mean()


def log_cosh(error: torch.Tensor) -> torch.Tensor:
    """Return the mean of what is quadratic near zero, and straight far from it."""
    far = error.abs()
    return (far + F.softplus(-2 * far) - 0.6931).mean()


def huber(error: torch.Tensor) -> torch.Tensor:
    """Return the same of two parts."""
    far = error.abs()
    return torch.where(far < 1, 0.5 * error**2, far - 0.5).mean()


def kernel(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return how alike each is to each."""
    return torch.exp(-((one - other) ** 2)).mean()


TABLES = {
    "squares": lambda out, y: ((out - y) ** 2).mean(),
    "sum": lambda out, y: (y - out).pow(2).sum() / 16,
    "absolute": lambda out, y: (out - y).abs().mean(),
    "product": lambda out, y: ((out - y) * (out - y)).mean(),
    "root": lambda out, y: ((out - y) ** 2).mean().sqrt(),
    "dimensions": lambda out, y: ((out - y) ** 2).mean(0).mean(),
    "weighted": lambda out, y: ((out - y) ** 2 * torch.ones(16)).mean(),
    "penalty": lambda out, y: ((out - y) ** 2).mean() + 0.01 * out.square().mean(),
    "two terms": lambda out, y: ((out - y) ** 2).mean() - 0.01 * out.tanh().mean(),
    "target": lambda out, y: ((out.squeeze() - y[:, None]) ** 2).mean(),
    "learned": lambda out, y: ((out.sigmoid() - y) ** 2).mean(),
    "certain": lambda out, y: (0.5 * out + (out.tanh() - y) ** 2 * torch.exp(-out)).mean(),
    "clipped": lambda out, y: clipped(out, y, torch.ones(16)),
    "log cosh": lambda out, y: log_cosh(out - y),
    "logarithm of cosh": lambda out, y: torch.log(torch.cosh(y - out)).mean(),
    "huber": lambda out, y: huber(out - y),
}
SOUND = {
    "log cosh": lambda out, y: log_cosh(out - y[:, None]),
    "huber": lambda out, y: huber(out.squeeze() - y),
    "kernel": lambda out, y: kernel(out, out.T) - 2 * kernel(out, y[None]),
    "kernel of both": lambda out, y: -kernel(out, y[None]),
    "hinge of pairs": lambda out, y: F.relu(1 - (out - out.T) * (y[:, None] - y).sign()).mean(),
    "same": lambda out, y: ((out.squeeze() - y) ** 2).mean(),
    "unsqueezed": lambda out, y: ((out - y[:, None]) ** 2).mean(),
    "one target": lambda out, y: ((out - y[0]) ** 2).mean(),
    "clipped": lambda out, y: clipped(out, y[:, None], torch.ones(16, 1)),
    "on purpose": lambda out, y: ((out.squeeze()[:, None] - y[None]) ** 2).mean(),
    "two parts": lambda out, y: 2 * (out - y).abs().mean() - (out - out.T).abs().mean(),
    "certain": lambda out, y: ((out.squeeze() - y) ** 2 * out.squeeze().exp()).mean(),
    "table": lambda out, y: ((out.squeeze()[:, None] - y[None]) ** 2 * out.exp()).mean(),
    "ranking": lambda out, _: torch.relu(1 - (out - out.T)).mean(),
    "distances": lambda out, _: (out - out.T).square().mean(),
    "energy": lambda out, y: (2 * (out - y).abs() - (out - out.T).abs()).mean(),
    "similarity": lambda out, _: F.cross_entropy(out @ out.T, torch.arange(16)),
    "all pairs": lambda out, _: (torch.eye(16) - out @ out.T).square().mean(),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_of_pairs_is_told(name: str) -> None:
    """(N, 1) against (N,) is told once, with the line that handed the loss to backward."""
    (probe,) = probes(TABLES[name])
    assert (probe.measured, probe.reference, probe.step) == (256.0, 16.0, 0)
    lines, start = inspect.getsourcelines(train)
    place = next(i for i, line in enumerate(lines) if ".backward()" in line)
    assert probe.source == f"{__file__}:{start + place}"
    assert probe.label == "Sequential"


@pytest.mark.parametrize("name", SOUND)
def test_pairs_on_purpose_are_not(name: str) -> None:
    """Rankings, distances, similarities and tables that were asked for are no mistake."""
    assert probes(SOUND[name]) == []


CHOSEN = {
    "squares": lambda q, a, y: ((q.gather(1, a) - y) ** 2).mean(),
    "scaled": lambda q, a, y: (y - 0.5 * q.gather(1, a)).abs().mean(),
    "a column": lambda q, a, y: ((q[:, 1:2] - y) ** 2).mean(),
    "of quantiles": lambda q, a, y: sum(
        torch.maximum(0.9 * e, -0.1 * e).mean() for e in (y - q[:, :1], y - q[:, 1:2])
    ),
}
CHOSEN_WELL = {
    "same": lambda q, a, y: ((q.gather(1, a).squeeze(1) - y) ** 2).mean(),
    "a column of its own": lambda q, a, y: ((q[:, 1] - y) ** 2).mean(),
    "columns of pairs": lambda q, a, y: ((q[:, :1] - q[:, 1]) ** 2).mean(),
    "unsqueezed": lambda q, a, y: ((q.gather(1, a) - y[:, None]) ** 2).mean(),
    "margins": lambda q, a, _: (1 - (q.gather(1, a) - q)).relu().mean(),
    "of the batch": lambda q, a, y: (q.gather(1, a) - (q @ q.T + y)).relu().mean(),
    "on purpose": lambda q, a, y: (q.gather(1, a).squeeze(1)[:, None] - y[None]).abs().mean(),
    "of all": lambda q, _, y: ((q.square().sum(1, keepdim=True) - y) ** 2).mean(),
}


@pytest.mark.parametrize("name", [*CHOSEN, *CHOSEN_WELL])
def test_chosen_values_against_all_targets(name: str) -> None:
    """One value of each row, (N, 1), against (N,): as DQN has it; not where all of it learns."""
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 3)
    with Recorder("x") as recorder:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.001)
        for _ in range(3):
            optimizer.zero_grad()
            action = torch.randint(0, 3, (16, 1))
            loss = (CHOSEN | CHOSEN_WELL)[name](net(torch.randn(16, 4)), action, torch.randn(16))
            loss.backward()
            optimizer.step()
    told = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "broadcast"]
    assert [(e.measured, e.reference, e.label) for e in told] == (
        [(256.0, 16.0, "Linear")] if name in CHOSEN else []
    )


def test_one_sample_is_no_table() -> None:
    """With a single sample nothing is compared with anything else."""
    assert probes(TABLES["squares"], size=1) == []


def test_only_the_first_steps_are_looked_at() -> None:
    """What begins later is not seen; the cost stays where it is."""
    calls = iter(range(100))

    def late(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return a sound loss first."""
        return (SOUND["same"] if next(calls) < 8 else TABLES["squares"])(out, y)

    assert probes(late, steps=12) == []


def test_probes_can_be_switched_off() -> None:
    """Without probes nothing is told."""
    assert probes(TABLES["squares"], probe=False) == []


def weighed(loss, size: int = 16) -> list[Probe]:
    """Record a training on terms (size,) of outputs, and return its probes of crossed weights."""
    torch.manual_seed(0)
    with Recorder("x") as recorder:
        train(lambda out, y: loss(out.squeeze(1), y), size=size)
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "weighed crosswise"]


CROSSED = {
    "column": lambda out, y: ((out - y) ** 2 * y[:, None].abs()).mean(),
    "advantage": lambda out, y: -((y - y[:, None].exp()) * out.tanh()).mean(),
    "hits": lambda out, y: -(((y > 0).float() - y[:, None].exp()) * out.tanh()).mean(),
    "sum": lambda out, y: ((y - y[:, None].exp()) * out.tanh()).sum() / 16 + out.square().mean(),
    "ended": lambda out, y: ((y + (0.9 * (y > 0) - 1) * y[:, None].cos()) * out.sin()).mean(),
    "clipped": lambda out, y: (
        -torch.min(out.exp() * y[:, None], out.exp().clamp(0.8, 1.2) * y[:, None]).mean()
    ),
}
WEIGHED = {
    "own": lambda out, y: ((out - y) ** 2 * y.abs()).mean(),
    "on purpose": lambda out, y: ((out - y)[None] * y[:, None]).mean(),
    "one weight": lambda out, y: ((out - y) ** 2 * torch.ones(16, 1)).mean(),
    "distances": lambda out, y: (out.exp() * (y[:, None] - y).abs()).mean(),
    "differences": lambda out, y: (out.exp() * (y[:, None] - y)).mean(),
    "alike": lambda out, y: (out.square() * ((y[:, None] > 0) == (y > 0)).float()).mean(),
    "mask": lambda out, y: (out.square() * torch.ones(16, 16).tril() * y.abs()).mean(),
    "kernel": lambda out, y: (out.square() * (y - 3 * y[:, None]).cos().softmax(1)).sum(),
}


@pytest.mark.parametrize("name", CROSSED)
def test_weights_of_all_samples_are_told(name: str) -> None:
    """The weights of a sample are its own: a column of them crosses each with all."""
    (probe,) = weighed(CROSSED[name])
    assert (probe.measured, probe.reference, probe.label) == (256.0, 16.0, "Sequential")


@pytest.mark.parametrize("name", WEIGHED)
def test_weights_of_pairs_on_purpose_are_not(name: str) -> None:
    """Distances, masks and kernels weigh pairs, and one weight for all crosses nothing."""
    assert weighed(WEIGHED[name]) == []


def test_few_samples_are_not_crossed() -> None:
    """A table of four by four is of few vectors by chance."""
    assert weighed(CROSSED["advantage"], size=4) == []


def crossed(first, second, against, size: int = 16) -> list[Probe]:
    """Learn with a model whose output is made of two parts, N of each; return what is told."""
    torch.manual_seed(0)

    class Sum(nn.Module):
        """Two parts of each sample."""

        def __init__(self) -> None:
            super().__init__()
            self.one, self.more = nn.Linear(4, 1), nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Return what is made of both."""
            return 0.5 + first(self.one(x)) + second(self.more(x))

    with Recorder("x") as recorder:
        model = Sum()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
        for _ in range(3):
            optimizer.zero_grad()
            against(model(torch.randn(size, 4)), torch.randn(size)).backward()
            optimizer.step()
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "broadcast"]


def squares(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the mean square error."""
    return ((out - y) ** 2).mean()


def test_a_table_that_the_model_makes() -> None:
    """A bias of (N, 1) and a product of (N,), compared with N targets."""
    (probe,) = crossed(lambda a: a, lambda b: b.sum(1), squares)
    assert (probe.measured, probe.reference, probe.label) == (256.0, 16.0, "Sum")


@pytest.mark.parametrize(
    ("first", "second", "against"),
    [
        (lambda a: a.squeeze(1), lambda b: b.sum(1), squares),
        (lambda a: a, lambda b: b.sum(1)[None], squares),
        (lambda a: a.squeeze(1)[:, None], lambda b: b.sum(1), squares),
        (lambda a: a, lambda b: b.sum(1) - 2 * b @ b.T, squares),
        (lambda a: a, lambda b: b.sum(1), lambda out, _: out.diag().square().mean()),
    ],
    ids=["squeezed", "unsqueezed", "on purpose", "distances", "diagonal"],
)
def test_tables_that_a_model_may_make(first, second, against) -> None:
    """Asked for, or part of distances between all rows."""
    assert crossed(first, second, against) == []


def residuals(source, constant: bool = False) -> list[Probe]:
    """Solve an equation of a second derivative; return what is told of its residual."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))

    def slope(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Return a derivative that can be learned through."""
        return torch.autograd.grad(y.sum(), x, create_graph=True)[0]

    with Recorder("x") as recorder:
        optimizer = torch.optim.Adam(net.parameters())
        for _ in range(3):
            x = torch.rand(16, 1, requires_grad=True)
            bent = slope(slope(net(x), x), x)
            ends = net(torch.tensor([[0.0], [1.0]]))
            residual = bent + source(x.detach() if constant else x)
            optimizer.zero_grad()
            (residual.square().mean() + ends.square().mean()).backward()
            optimizer.step()
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "broadcast"]


@SHAPES
@pytest.mark.parametrize("constant", [False, True], ids=["with a graph", "constant"])
def test_a_sum_with_all_sources(constant: bool) -> None:
    """A residual is a sum too, and its source may depend on places that need a gradient."""
    (probe,) = residuals(lambda x: x[:, 0].sin(), constant)
    assert (probe.measured, probe.reference) == (256.0, 16.0)
    assert residuals(lambda x: x.sin(), constant) == []
    assert residuals(lambda _: torch.ones(()), constant) == []


def functional(loss, *, product: bool = True, size: int = 16) -> list[Probe]:
    """Record a training of functions, of which none is a module, and return its probes."""
    torch.manual_seed(0)
    weight = torch.randn(3, 1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.001)
    with Recorder("x") as recorder:
        for _ in range(3):
            x, y = torch.randn(size, 3), torch.randn(size)
            out = x @ weight if product else (x * weight.T).sum(1, keepdim=True)
            optimizer.zero_grad()
            loss(out, y).backward()
            optimizer.step()
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "broadcast"]


def test_networks_that_are_no_modules() -> None:
    """What they make is known by its size, where it comes out of a product."""
    (probe,) = functional(TABLES["squares"])
    assert (probe.measured, probe.reference, probe.label) == (256.0, 16.0, "")
    for loss in (
        lambda out, y: ((out[:, 0] - y) ** 2).mean(),
        lambda out, y: kernel(out, out.T),
        lambda out, y: F.softplus(-(out - out.T) * torch.sign(y[:, None] - y)).mean(),
    ):
        assert functional(loss) == []
    assert functional(TABLES["squares"], product=False) == []
    assert functional(TABLES["squares"], size=4) == []


def test_an_output_of_a_module_is_known_by_it_alone() -> None:
    """Tables of other sizes are none of its outputs."""
    assert probes(lambda out, y: ((out[:8].reshape(8, 1) - y[:8]) ** 2).mean()) == []
