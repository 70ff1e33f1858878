"""What the recorder sees of labels that change, and of targets that stand in the input."""

from random import Random

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.samples import sample_pairs
from trainguard.observe.loop.watch.samples.labels import hash_rows
from trainguard.observe.loop.watch.samples.target_epochs import Epochs


def probes_of(train, *arguments, probe: str = "", **options) -> list[Probe]:
    """Record a training and return its probes of one kind."""
    torch.manual_seed(0)
    with Recorder("x") as recorder:
        train(*arguments, **options)
    events = [event for event in recorder.trace if isinstance(event, Probe)]
    return [event for event in events if event.probe == probe]


def labels_of(train, *arguments, **options) -> list[Probe]:
    """Record a training and return what was said of its labels."""
    return probes_of(train, *arguments, probe="labels", **options)


def target_of(train, *arguments, **options) -> list[Probe]:
    """Record a training and return what was said of targets in the input."""
    return probes_of(train, *arguments, probe="target", **options)


class Drawn(Dataset):
    """Sixty-four rows whose labels are drawn anew each time, or are their own, or both."""

    def __init__(self, random: bool, rows: torch.Tensor | None = None) -> None:
        self.rows = torch.randn(64, 6) if rows is None else rows
        self.labels = torch.randint(5, (len(self.rows),))
        self.random = random

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    def __getitem__(self, index):
        """Return a row and a label."""
        label = torch.randint(5, ()) if self.random else self.labels[index]
        return self.rows[index], label


def classify(each, model: nn.Module | None = None, change=lambda x, y: (x, y)) -> nn.Module:
    """Train a classifier on batches of rows and classes."""
    model = model or nn.Sequential(nn.Flatten(), nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for inputs, classes in each:
        optimizer.zero_grad()
        given, label = change(inputs, classes)
        F.cross_entropy(model(given), label).backward()
        optimizer.step()
    return model


def epochs(loader, count: int = 3):
    """Yield the batches of some epochs."""
    for _ in range(count):
        yield from loader


def test_labels_that_change_are_seen() -> None:
    """A row that comes again with another label: four of five, where there are five classes."""
    loader = DataLoader(Drawn(random=True), batch_size=16, shuffle=True)
    (probe,) = labels_of(lambda: classify(epochs(loader)))
    assert 0.6 < probe.measured <= 1
    assert probe.reference == pytest.approx(0.75 * 0.8, abs=0.05)
    assert "test_labels.py:" in probe.source


@pytest.mark.parametrize("shuffle", [True, False])
def test_labels_that_stay_are_not_told(shuffle: bool) -> None:
    """The same rows have the same labels in each epoch."""
    loader = DataLoader(Drawn(random=False), batch_size=16, shuffle=shuffle)
    assert labels_of(lambda: classify(epochs(loader))) == []


def test_a_row_with_several_labels_is_data() -> None:
    """Where one picture has several classes, it comes with each of them in every epoch."""
    rows = torch.randn(64, 6).repeat(4, 1)
    loader = DataLoader(Drawn(random=False, rows=rows), batch_size=16, shuffle=True)
    assert labels_of(lambda: classify(epochs(loader, 5))) == []


def test_the_first_batches_alone_say_nothing() -> None:
    """Where every pass ends with its first batch, it is not known what a row has for labels."""
    rows = torch.randn(64, 6).repeat(4, 1)
    loader = DataLoader(Drawn(random=False, rows=rows), batch_size=4, shuffle=True)
    assert labels_of(lambda: classify(next(iter(loader)) for _ in range(100))) == []


def test_one_batch_that_is_all_the_data_is_enough() -> None:
    """Full-batch training."""
    loader = DataLoader(Drawn(random=True), batch_size=64)
    (probe,) = labels_of(lambda: classify(epochs(loader)))
    assert probe.measured > 0.6


@pytest.mark.parametrize("case", ["rotated", "no class", "once", "evaluated", "one-hot"])
def test_what_is_no_label_of_the_input_is_left_alone(case: str) -> None:
    """Inputs that are changed by their label, integers that are no target, and single epochs."""
    loader = DataLoader(Drawn(random=True), batch_size=16)

    def train() -> None:
        """Train in one of the ways."""
        if case == "rotated":  # the label says how the input is turned before the model sees it
            classify(epochs(loader), change=lambda x, y: (x.roll(1, 1) * (1 + y[:, None]), y))
        elif case == "no class":  # a time step that is drawn for each sample
            model = nn.Linear(6, 6)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            for inputs, moment in epochs(loader):
                F.mse_loss(model(inputs), inputs * moment[:, None]).backward()
                optimizer.step()
        elif case == "once":
            classify(loader)
        elif case == "evaluated":
            model = classify(loader)
            with torch.no_grad():
                for inputs, classes in epochs(loader):
                    F.cross_entropy(model(inputs), classes)
        else:
            classify(epochs(loader), change=lambda x, y: (x, F.one_hot(y, 5).float()))

    assert labels_of(train) == []


def leaking(columns: int = 5, *, at: int | None = 3, rows: int = 64, binary: bool = True):
    """Return rows of numbers and a target, which is one of the columns unless told otherwise."""
    inputs = torch.randn(rows, columns)
    target = (torch.rand(rows) < 0.5).float() if binary else torch.randn(rows)
    if at is not None:
        inputs[:, at] = target
    return inputs, target


def regress(each, loss: str = "mse_loss", width: int = 5, take=lambda x: x) -> None:
    """Train on batches of inputs and one number each."""
    model = nn.Linear(width, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for inputs, target in each:
        optimizer.zero_grad()
        function = getattr(F, loss, by_hand)
        function(model(take(inputs)).squeeze(1), target).backward()
        optimizer.step()


def by_hand(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return a loss that no function of torch computes."""
    return ((output - target) ** 2).mean()


@pytest.mark.parametrize("loss", ["mse_loss", "binary_cross_entropy_with_logits", "by hand"])
@pytest.mark.parametrize("binary", [True, False])
def test_a_column_that_is_the_target_is_seen(loss: str, binary: bool) -> None:
    """Whatever computes the loss of what a loader serves."""
    loader = DataLoader(TensorDataset(*leaking(binary=binary)), batch_size=16)
    (probe,) = target_of(lambda: regress(loader, loss))
    assert (probe.measured, probe.label) == (1.0, "column 3 of the input")


def test_a_column_is_seen_without_a_loader() -> None:
    """Batches that are cut by hand, and classes."""
    inputs, target = leaking()
    pairs = [(inputs[i : i + 16], target[i : i + 16]) for i in range(0, 64, 16)]
    (probe,) = target_of(lambda: regress(pairs))
    assert "test_labels.py:" in probe.source
    model = nn.Linear(5, 2)
    classes = [(x, y.long()) for x, y in pairs]
    assert len(target_of(lambda: classify(classes, model))) == 1


@pytest.mark.parametrize(("series", "seen"), [(True, 1), (False, 0)])
def test_a_moment_of_a_window_is_seen_where_its_neighbours_foretell_it(
    series: bool, seen: int
) -> None:
    """What stands in one place alone may be asked for on purpose, as a test of memory."""
    moments = torch.randn(64, 6)
    windows = (moments.cumsum(1) if series else moments).unsqueeze(1)
    loader = DataLoader(TensorDataset(windows, windows[:, :, 4]), batch_size=16)
    assert len(target_of(lambda: regress(loader, width=6))) == seen


@pytest.mark.parametrize(
    ("early", "label"),
    [
        (0, None),
        (1, "column 15 of the input"),
        (2, "column 14 to 15 of the input"),
        (3, None),  # each is the next one of a place that is shown: a warm-up, perhaps
        (4, "column 12 to 15 of the input"),
    ],
)
def test_a_target_of_several_that_begins_in_its_window(early: int, label: str | None) -> None:
    """Of a smooth walk, so that what goes before foretells it; only of what a loss is told."""
    windows = torch.randn(300).cumsum(0).cumsum(0).unfold(0, 24, 1)
    shown, target = windows[:, :16], windows[:, 16 - early : 20 - early]

    def train(cut: int = 0) -> None:
        """Learn all that is served, or what comes after so many values."""
        model = nn.Linear(16, 4 - cut)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        for inputs, served in DataLoader(TensorDataset(shown, target), batch_size=32):
            optimizer.zero_grad()
            F.mse_loss(model(inputs), served[:, cut:]).backward()
            optimizer.step()

    assert [probe.label for probe in target_of(train)] == ([label] if label else [])
    if early in (1, 2):
        assert target_of(lambda: train(early)) == []


@pytest.mark.parametrize(
    ("case", "options"),
    [
        ("no column", {"at": None}),
        ("two batches", {"rows": 32}),
        ("few rows", {"rows": 24}),
        ("most rows", {}),
        ("dropped", {}),
        ("constant", {}),
        ("shifted", {}),
        ("another column", {}),
    ],
)
def test_a_column_that_is_not_the_target_is_left_alone(case: str, options) -> None:
    """Too little to say so, a column that the model does not get, a target that is constant."""
    inputs, target = leaking(**options)
    if case == "most rows":
        inputs[5, 3] += 1
    if case == "constant":
        target[:], inputs[:, 3] = 1.0, 1.0
    if case == "another column":  # each half of the data has its own
        inputs[32:, 2], inputs[32:, 3] = target[32:], 0.5
    if case == "shifted":
        inputs[:, 3] += 1
    loader = DataLoader(TensorDataset(inputs, target), batch_size=8 if case == "few rows" else 16)
    dropped = torch.tensor([0, 1, 2, 4])
    take, width = ((lambda x: x[:, dropped]), 4) if case == "dropped" else ((lambda x: x), 5)
    assert target_of(lambda: regress(loader, width=width, take=take)) == []


def test_an_autoencoder_is_left_alone() -> None:
    """Its target is the whole of its input, even where that is one number."""
    for width in (5, 1):
        model = nn.Linear(width, width)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

        def train(model=model, optimizer=optimizer, width=width) -> None:
            """Train on what comes in."""
            for (inputs,) in DataLoader(TensorDataset(torch.randn(64, width)), batch_size=16):
                optimizer.zero_grad()
                F.mse_loss(model(inputs), inputs).backward()
                optimizer.step()

        assert target_of(train) == []


def test_nothing_is_tried_out_where_probes_are_off() -> None:
    """`probe=False` leaves targets alone."""
    loader = DataLoader(TensorDataset(*leaking()), batch_size=16)
    with Recorder("x", probe=False) as recorder:
        regress(loader)
    assert not any(isinstance(event, Probe) and event.probe == "target" for event in recorder.trace)


def test_rows_of_round_numbers_have_hashes_of_their_own() -> None:
    """Rows that differ in one place of ones and zeros are not taken for one another."""
    assert len(set(hash_rows(torch.eye(2048)))) == 2048


@pytest.mark.parametrize("apart", [True, False])
def test_positions_in_a_batch_are_no_labels(apart: bool) -> None:
    """They differ for a row in each epoch, also where the last batch is a short one."""
    draws = Random(0)
    hashes = [draws.getrandbits(62) for _ in range(32)]
    rows, epochs = list(range(500)), Epochs()
    for _ in range(2):
        draws.shuffle(rows)
        labels = hashes[:5] * 100 if apart else hashes * 16
        if apart:
            draws.shuffle(labels)
        for start in range(0, 500, 32):
            part = rows[start : start + 32]
            epochs.add(part, labels[start : start + len(part)])
    assert epochs.is_shuffled_apart == apart


@pytest.mark.parametrize("wrapped", [False, True], ids=["tensor", "several"])
def test_a_pass_between_a_pass_and_its_loss(wrapped: bool) -> None:
    """Each loss belongs to the pass that has made its scores: not to the latest one."""

    class Head(nn.Linear):
        """A head that may return another output beside."""

        def forward(self, x):
            """Return scores."""
            made = super().forward(x)
            return (made, made.mean(1)) if wrapped else made

    def train(apart: bool) -> None:
        """Train on labelled rows, and call the model on others before their loss."""
        rows, others = torch.randn(128, 8), torch.randn(128, 8)
        classes = torch.randint(4, (128,))
        model = Head(8, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(3):
            own, order = torch.randperm(128), torch.randperm(128)
            labels = torch.randperm(128) if apart else own
            batches = [each.split(16) for each in (own, labels, order)]
            for mine, named, theirs in zip(*batches, strict=True):
                optimizer.zero_grad()
                made, beside = model(rows[mine]), model(others[theirs])
                scores = made[0] if wrapped else made
                more = (beside[0] if wrapped else beside).square().mean()
                (F.cross_entropy(scores, classes[named]) + more).backward()
                optimizer.step()

    assert labels_of(train, False) == []
    (probe,) = labels_of(train, True)
    assert probe.measured > probe.reference


def test_a_second_training_has_rows_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a teacher was shown is no reason to look at its student no more."""
    monkeypatch.setattr(sample_pairs, "_ROWS", 304)
    rows, labels = torch.randn(96, 12), torch.randint(5, (96,))

    def dealt(apart: bool, count: int):
        """Yield epochs whose labels stay, or are dealt anew."""
        for _ in range(count):
            order = torch.randperm(96)
            own = torch.randperm(96) if apart else order
            yield from zip(rows[order].split(8), labels[own].split(8), strict=True)

    def train() -> None:
        """Train two models, the second one with labels that are dealt anew."""
        for apart in (False, True):
            classify(dealt(apart, 5), nn.Linear(12, 5))

    (probe,) = labels_of(train)
    assert probe.measured > probe.reference
