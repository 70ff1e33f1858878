"""What lines set of the data set that the parts of a split share."""

import linecache
from pathlib import Path

import pytest
import torch

from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.samples.shared_settings import read_settings

HEAD = """
import torch
from torch.utils.data import DataLoader, Dataset, Subset, random_split

def shift(x):
    return x + 0.1

def plain(x):
    return x * 1

class Data(Dataset):
    def __init__(self, transform=None):
        self.x, self.y = torch.randn(40, 4), torch.randn(40, 1)
        self.transform = transform

    def __len__(self):
        return 40

    def __getitem__(self, index):
        x = self.x[index]
        return (self.transform(x) if self.transform else x), self.y[index]

def fit(train_set, val_set, between=lambda data: None):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    train_loader, val_loader = DataLoader(train_set, 8), DataLoader(val_set, 8)
    for epoch in range(2):
        between(train_set)
        for x, y in train_loader:
            optimizer.zero_grad()
            (model(x) - y).square().mean().backward()
            optimizer.step()
        with torch.no_grad():
            for x, y in val_loader:
                model(x)
"""
SPLIT = "train_set, val_set = random_split(full, [30, 10])\n"
LAST_WINS = f"""
full = Data()
{SPLIT}
train_set.dataset.transform = shift
val_set.dataset.transform = None
fit(train_set, val_set)
"""
LOST = f"""
def make():
    full = Data(shift)
    {SPLIT.strip()}
    val_set.dataset.transform = plain
    return train_set, val_set

fit(*make())
"""
BY_PLACE = """
full = Data(shift)
parts = random_split(full, [30, 10])
parts[1].dataset.transform = plain
fit(parts[0], parts[1])
"""
BY_HAND = """
class Module:
    def setup(self):
        full = Data()
        self.train, self.val = Subset(full, range(30)), Subset(full, range(30, 40))
        self.train.dataset.transform = shift
        self.val.dataset.transform = plain

module = Module()
module.setup()
fit(module.train, module.val)
"""
OF_ONE_CLASS = f"""
class Shift:
    def __init__(self, by):
        self.by = by

    def __call__(self, x):
        return x + self.by

full = Data()
{SPLIT}
train_set.dataset.transform = Shift(0.1)
val_set.dataset.transform = Shift(0)
fit(train_set, val_set)
"""
OF_ITS_OWN = f"""
import copy
full = Data(shift)
{SPLIT}
val_set.dataset = copy.copy(full)
val_set.dataset.transform = plain
fit(train_set, val_set)
"""
FOR_ALL = f"""
full = Data(plain)
{SPLIT}
full.transform = shift
fit(train_set, val_set)
"""
STATISTICS = f"""
full = Data(plain)
{SPLIT}
train_set.dataset.transform = lambda x: (x - 0.1) / 2
fit(train_set, val_set)
"""
THE_SAME = f"""
full = Data()
{SPLIT}
train_set.dataset.transform = shift
val_set.dataset.transform = shift
fit(train_set, val_set)
"""
SET_ANEW = f"""
full = Data()
{SPLIT}
def between(data):
    data.dataset.transform = shift

train_set.dataset.transform = shift
val_set.dataset.transform = plain
fit(train_set, val_set, between)
"""
IN_BRANCHES = f"""
full = Data()
{SPLIT}
if len(full) > 1000:
    train_set.dataset.transform = shift
val_set.dataset.transform = plain
fit(train_set, val_set)
"""
OF_A_LOADER = f"""
full, test_loader = Data(plain), DataLoader(Data(), 8)
{SPLIT}
test_loader.dataset.transform = plain
full.transform = shift
fit(train_set, val_set)
"""
PHASES = (
    HEAD.replace("fit(", "unused(")
    + f"""
full = Data()
{SPLIT}
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
train_loader, val_loader = DataLoader(train_set, 8), DataLoader(val_set, 8)
for epoch in range(2):
    train_set.dataset.transform = shift
    for x, y in train_loader:
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    val_set.dataset.transform = plain
    with torch.no_grad():
        for x, y in val_loader:
            model(x)
"""
)


OF_THE_PART = f"""
full = Data()
{SPLIT}
train_set.transform = shift
fit(train_set, val_set)
"""
OF_BOTH = f"""
full = Data()
{SPLIT}
train_set.transform = train_set.dataset.transform = shift
fit(train_set, val_set)
"""
SEES_TO_IT = f"""
class Augmented(Subset):
    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return self.transform(x), y

    __getitems__ = None

full = Data()
{SPLIT}
train_set = Augmented(full, train_set.indices)
train_set.transform = shift
train_set.name = "training"
fit(train_set, val_set)
"""


def found(script: str, folder: Path, probe: str = "shared setting") -> list[tuple[str, ...]]:
    """Return what is seen of a script: what is set, through which part, to what, and before."""
    file = folder / "script.py"
    file.write_text(script)
    linecache.checkcache(str(file))
    torch.manual_seed(0)
    with Recorder("x") as recorder:
        exec(compile(script, str(file), "exec"), {"__name__": "script"})
    probes = [event for event in recorder.trace if getattr(event, "probe", "") == probe]
    return [tuple(probe.label.split("\n")) for probe in probes]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (LAST_WINS, ("transform", "val_set", "None", "shift")),
        (LOST, ("transform", "val_set", "plain", "")),
        (BY_PLACE, ("transform", "parts[1]", "plain", "")),
        (BY_HAND, ("transform", "self.val", "plain", "shift")),
        (OF_ONE_CLASS, ("transform", "val_set", "Shift(0)", "Shift(0.1)")),
    ],
    ids=["the last line wins", "the first is lost", "by place", "by hand", "of one class"],
)
def test_a_setting_that_another_part_gets_is_found(script, expected, tmp_path: Path) -> None:
    """By the line that sets it, whichever way the parts are made and called."""
    assert found(HEAD + script, tmp_path) == [expected]


@pytest.mark.parametrize(
    "script",
    [OF_ITS_OWN, FOR_ALL, STATISTICS, THE_SAME, SET_ANEW, IN_BRANCHES, OF_A_LOADER],
    ids=["a copy", "for all", "statistics", "the same", "anew", "branches", "of a loader"],
)
def test_what_is_meant_for_all_parts_is_fine(script, tmp_path: Path) -> None:
    """So is what another data set gets, and what holds only until the part is served."""
    assert found(HEAD + script, tmp_path) == []


def test_what_is_set_before_each_phase_is_fine(tmp_path: Path) -> None:
    """The line below has not run yet, and the one above has by then."""
    assert found(PHASES, tmp_path) == []


def test_a_setting_of_the_part_itself_is_lost(tmp_path: Path) -> None:
    """A Subset has no transform; the line that sets one is told."""
    assert found(HEAD + OF_THE_PART, tmp_path, "lost setting") == [("transform", "Data")]


@pytest.mark.parametrize("script", [SEES_TO_IT, THE_SAME, FOR_ALL, OF_BOTH])
def test_a_part_that_reads_its_own_settings_loses_none(script, tmp_path: Path) -> None:
    """A class of the user's own may read them, and what is set of the data set is read."""
    assert found(HEAD + script, tmp_path, "lost setting") == []


def test_a_file_that_is_no_python_has_no_settings(tmp_path: Path) -> None:
    """A notebook's cell or a shell command in it is no reason to fail."""
    (tmp_path / "odd.py").write_text("%matplotlib inline\nx.dataset.transform = y\n")
    assert read_settings(str(tmp_path / "odd.py")) == ()
    assert read_settings("<stdin>") == ()
