"""What is right in an evaluation of several batches."""

from math import isnan

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainguard.events.fit import Score
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.evaluations import scores


def scored(batches: int, speak: bool, late: bool = False) -> Score:
    """
    Train a step, evaluate so many batches, and return the last score.

    late: whether the losses of an evaluation are computed where graphs are built again.
    """
    torch.manual_seed(0)
    net = nn.Linear(3, 2)
    with Recorder("x") as recorder:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            loss = nn.functional.cross_entropy(net(torch.randn(8, 3)), torch.randint(2, (8,)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for batch in range(batches):
                    x = torch.randn(8, 3)
                    wanted = net(x).argmax(1)
                    wanted[: batch + 1] = 1 - wanted[: batch + 1]  # of each batch fewer are right
                    made = net(x)
                    with torch.set_grad_enabled(late):
                        nn.functional.cross_entropy(made, wanted)
            if speak:
                print("val_acc 0.5")
    return [e for e in recorder.trace if isinstance(e, Score) and e.evaluation][-1]


def test_the_last_batch_is_told() -> None:
    """By itself and among all, whenever an accuracy was said first."""
    for speak in (False, True):
        ways = {name: (right, of) for name, right, of, _ in scored(4, speak).ways}
        assert ways["right"] == (7 + 6 + 5 + 4, 32)
        assert ways["final"] == (4, 8)


def test_a_loss_without_a_graph_belongs_to_the_pass_that_has_none() -> None:
    """Where it is computed does not make an evaluation a training."""
    assert scored(4, speak=True, late=True).ways == scored(4, speak=True).ways


def test_a_loss_of_training_is_no_evaluation() -> None:
    """Nor is one of the same scores without their graph, or one beside a teacher's pass."""
    torch.manual_seed(0)
    net, teacher = nn.Linear(3, 2), nn.Linear(3, 2)
    with Recorder("x") as recorder:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            x, wanted = torch.randn(8, 3), torch.randint(2, (8,))
            scores = net(x)
            nn.functional.cross_entropy(scores.detach(), wanted)
            with torch.no_grad():
                teacher(x)
            optimizer.zero_grad()
            nn.functional.cross_entropy(scores, wanted).backward()
            optimizer.step()
            print("train_acc 0.5")
    every = [e for e in recorder.trace if isinstance(e, Score)]
    found = [e for e in every if not e.source.startswith("of ")]  # those are the teacher's
    assert found
    assert not any(e.evaluation for e in found)


def test_two_batches_have_no_last_one() -> None:
    """Of few batches the last one says as much."""
    assert "final" not in {name for name, *_ in scored(2, speak=True).ways}


def decided(limit: float, *, near: bool) -> dict[str, float]:
    """Train on zeros and ones, evaluate without a loss, and return the counts of the last score."""
    torch.manual_seed(0)
    net = nn.Linear(3, 1)
    rows = torch.randn(64, 3)
    labels = (rows[:, 0] > 0).float()
    loader = DataLoader(TensorDataset(rows, labels), 32)
    with Recorder("x") as recorder:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
        for x, y in [*loader, *loader]:
            loss = nn.functional.binary_cross_entropy_with_logits(net(x)[:, 0], y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            if near:
                print("val_acc", ((net(rows)[:, 0] > limit).float() == labels).float().mean())
            else:
                right = sum(((net(x)[:, 0] > limit).float() == y).sum() for x, y in loader)
                print("val_acc", right / 64)
    scores = [e for e in recorder.trace if isinstance(e, Score) and e.evaluation]
    return {name: right for name, right, *_ in scores[-1].ways}


def test_decisions_are_counted_without_a_loss() -> None:
    """By what a loader serves, or what lies beside the input; a half of logits is another way."""
    served, beside = decided(0.0, near=False), decided(0.0, near=True)
    assert served["right"] == beside["right"]
    assert {"half", "rounded"} <= served.keys() & beside.keys()


def renamed(order: list[int]) -> float:
    """Evaluate what names each class rightly, but for their order, and return what is renamed."""
    net = nn.Linear(1, 1)
    classes = torch.arange(4).repeat(5)
    with Recorder("x") as recorder:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net(torch.ones(2, 1)).sum().backward()
        optimizer.step()
        with torch.no_grad():
            named = nn.functional.one_hot(torch.tensor(order)[classes], 5).float()
            named[0] = named[1]  # one of class 0 is taken for another
            nn.functional.cross_entropy(named, classes)
    assert recorder.trace.conditions.get("faults", ()) == ()
    (score,) = [e for e in recorder.trace if isinstance(e, Score)]
    return score.renamed


def test_what_other_names_make_right_is_counted() -> None:
    """Whatever the order is; not where two classes are named alike."""
    assert renamed([0, 1, 2, 3]) == renamed([3, 1, 0, 4]) == 19
    assert isnan(renamed([3, 3, 0, 1]))


def test_classes_in_bytes_are_counted() -> None:
    """Of twenty classes, whose pairs are more than a byte has room for."""
    named = torch.arange(20).repeat(2)
    counts = scores._count_crossed({1: named.numpy()}, 20, named.to(torch.uint8), -100)
    assert scores._rename(counts["crossed"][0], 20) == 40


def test_losses_inside_of_a_transformation_have_no_scores() -> None:
    """Their tensors have no numbers yet, and the watcher goes on."""
    net = nn.Linear(3, 4)
    classes = torch.arange(4)

    def loss(weight: torch.Tensor) -> torch.Tensor:
        """Return the loss of some weights."""
        return nn.functional.cross_entropy(nn.functional.linear(torch.ones(4, 3), weight), classes)

    with Recorder("x") as recorder:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(2):
            net.weight.grad = torch.func.grad(loss)(net.weight.detach())
            optimizer.step()
        print("val_acc 0.5")
    assert recorder.trace.conditions.get("faults", ()) == ()


def test_heads_with_other_classes_have_scores_of_their_own() -> None:
    """Where one place evaluates them one after the other, in one step."""
    torch.manual_seed(0)
    net = nn.Linear(3, 5)
    with Recorder("x") as recorder:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        nn.functional.cross_entropy(net(torch.randn(8, 3)), torch.arange(8) % 5).backward()
        optimizer.step()
        with torch.no_grad():
            for classes in (5, 3):
                made = net(torch.randn(12, 3))[:, :classes]
                nn.functional.cross_entropy(made, torch.arange(12) % classes)
        print("val_acc 0.5")
    assert "faults" not in recorder.trace.conditions
    found = [e for e in recorder.trace if isinstance(e, Score) and e.evaluation]
    assert [event.classes for event in found] == [5, 3]
