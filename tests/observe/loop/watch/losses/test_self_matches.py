"""Tables of scores of all pairs of a batch, and whether their diagonal is left out."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

COUNT = 12
PARTNER = torch.arange(COUNT).roll(1)


def probes(loss_of, before: int = 0, kind: str = "self") -> list[Probe]:
    """Record a training on codes of length 1, after some steps of another one."""
    torch.manual_seed(0)
    net, other = nn.Linear(6, 4), nn.Linear(6, 1)
    with Recorder("x") as recorder:
        for steps, model in ((before, other), (4, net)):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            for _ in range(steps):
                optimizer.zero_grad()
                out = model(torch.randn(COUNT, 6))
                loss = loss_of(F.normalize(out, dim=1)) if model is net else out.square().mean()
                loss.backward()
                optimizer.step()
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe == kind]


@pytest.mark.parametrize("before", [0, 20])
def test_a_diagonal_that_is_kept(before: int) -> None:
    """It is told in each of its calls, however late they come."""
    (probe,) = probes(lambda codes: F.cross_entropy(codes @ codes.T / 0.1, PARTNER), before)
    assert (probe.measured, probe.reference) == (4.0, 4.0)


EYE = torch.eye(COUNT, dtype=torch.bool)
SOUND = {
    "masked": lambda c: F.cross_entropy((c @ c.T / 0.1).masked_fill(EYE, float("-inf")), PARTNER),
    "zeroed": lambda c: F.cross_entropy((c @ c.T / 0.1) * ~EYE, PARTNER),
    "target": lambda c: F.cross_entropy(c @ c.T / 0.1, torch.arange(COUNT)),
    "lengths": lambda c: F.cross_entropy(
        (w := c * torch.linspace(0.1, 2, COUNT)[:, None]) @ w.T, PARTNER
    ),
    "constant": lambda c: F.cross_entropy(0 * (c @ c.T), PARTNER),
    "soft targets": lambda c: F.cross_entropy(c @ c.T / 0.1, torch.eye(COUNT)),
}


def test_a_diagonal_that_is_kept_beside_soft_targets() -> None:
    """The partner of each may be marked in a table, too."""
    marks = torch.eye(COUNT).roll(1, 0)
    (probe,) = probes(lambda codes: F.cross_entropy(codes @ codes.T / 0.1, marks))
    assert (probe.measured, probe.reference) == (4.0, 4.0)


@pytest.mark.parametrize(
    ("right", "count"), [(torch.arange(COUNT), 1), (PARTNER, 0), (torch.zeros(COUNT).long(), 0)]
)
def test_a_view_that_is_the_sample_itself(right, count) -> None:
    """The scores at the targets are told where all are those of a vector with itself."""
    found = probes(lambda codes: F.cross_entropy(codes @ codes.T / 0.1, right), kind="view")
    assert len(found) == count


@pytest.mark.parametrize("name", SOUND)
def test_what_is_sound(name: str) -> None:
    """Masked diagonals, those that are the target, and scores of any length are no mistake."""
    assert probes(SOUND[name]) == []


def distilled(term, steps: int = 12) -> list[Probe]:
    """Record a training with a term of a student's and a teacher's answers."""
    torch.manual_seed(0)
    student, teacher = nn.Linear(6, 4), nn.Linear(6, 4).requires_grad_(requires_grad=False)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(steps):
            inputs = torch.randn(COUNT, 6)
            out = student(inputs)
            loss = F.cross_entropy(out, PARTNER % 4)
            term(loss, out, teacher(inputs)).backward()
            optimizer.step()
            optimizer.zero_grad()
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "itself"]


def divergence(out: torch.Tensor, soft: torch.Tensor) -> torch.Tensor:
    """Return how far answers are from those of a teacher."""
    return F.kl_div(out.log_softmax(1), soft.softmax(1), reduction="batchmean")


def measured(loss: torch.Tensor, _out: torch.Tensor, soft: torch.Tensor) -> torch.Tensor:
    """Compare a teacher with itself, and add nothing of that."""
    divergence(soft, soft)
    return loss


ITSELF = {
    "divergence": (lambda loss, _, soft: loss + divergence(soft, soft), 1.0),
    "distance": (lambda loss, _, soft: 0.3 * loss + 0.7 * F.mse_loss(soft, soft.clone()), 1.0),
    "logarithms": (
        lambda loss, _, t: loss + F.kl_div(t.log_softmax(1), t.log_softmax(1), log_target=True),
        1.0,
    ),
    "measured": (measured, 0.0),
}
NOT_ITSELF = {
    "student": lambda loss, out, soft: loss + divergence(out, soft),
    "detached": lambda loss, out, soft: loss + divergence(out.detach(), soft),
    "zeros": lambda loss, out, _: loss + F.l1_loss(torch.zeros(COUNT), torch.zeros(COUNT)),
    "both learn": lambda loss, out, _: loss + F.mse_loss(out, out.clone()),
}


@pytest.mark.filterwarnings("ignore:reduction")
@pytest.mark.parametrize("name", ITSELF)
def test_a_teacher_that_is_compared_with_itself(name: str) -> None:
    """It is told with whether something without a graph is in the loss."""
    term, added = ITSELF[name]
    (probe,) = distilled(term)
    assert (probe.measured, probe.reference) == (8.0, added)


@pytest.mark.parametrize("name", NOT_ITSELF)
def test_what_is_compared_with_something_else(name: str) -> None:
    """Other numbers, a placeholder of zeros and what has a graph are left alone."""
    assert distilled(NOT_ITSELF[name]) == []
