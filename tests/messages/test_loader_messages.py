"""What a user reads when loaders break an invariant: whole messages, as they are printed."""

import pytest

# pytester forgets modules that a run inside this process was the first to import, and torch
# cannot be imported twice.
import trainguard.observe.loader.observer
import trainguard.observe.loader.scan
import trainguard.pytest_plugin.session  # noqa: F401

HEAD = """
import torch
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset
import trainguard as tg

rows = TensorDataset(torch.arange(200.0).view(50, 4), torch.arange(50) % 3 + 1)

"""
# One loader for each invariant, wrong in the way that the invariant is about.
LOADERS = {
    "chunk_length_matches_split": """
def build(split):
    return [torch.zeros(4, 2000, 1)] * 3

loaders = tg.Loader(build, splits={"train": {"chunk": 2000}, "val": {"chunk": 200}})
""",
    "chunks_are_contiguous": """
text = torch.arange(400).view(4, 100)
batches = [(text[:, i:i + 9], text[:, i + 1:i + 10]) for i in range(0, 90, 10)]
loaders = tg.Loader({"train": batches}, labels=1, chunks="stream")
""",
    "padding_is_masked": """
tokens = torch.arange(1, 13).repeat(6, 1)
tokens[:, 9:] = 0
loaders = tg.Loader(
    {"val": [{"tokens": tokens, "mask": tokens == 0}]},
    fields={"tokens": tg.integer("B T", 0, 12), "mask": tg.mask("B T")},
    mask="mask",
)
""",
    "epoch_visits_each_sample_once": """
class Loader:
    def __len__(self):
        return 50

    def __iter__(self):
        return iter(DataLoader(rows, batch_size=10, shuffle=True))

loaders = tg.Loader({"train": Loader()})
""",
    "splits_are_disjoint": """
def build():
    train, val = Subset(rows, range(40)), Subset(rows, range(35, 50))
    return DataLoader(train, batch_size=8, shuffle=True), DataLoader(val, batch_size=8)

loaders = tg.Loader(build)
""",
    "last_batch_is_as_declared": """
def build(batch_size):
    return DataLoader(rows, batch_size=batch_size, shuffle=True)

loaders = tg.Loader(
    build, arguments={"batch_size": 16}, splits={"train": {"batch": 16, "last": "dropped"}}
)
""",
    "epochs_are_reshuffled": """
class Once:
    def __init__(self):
        self.order = torch.randperm(50).split(4)

    def __iter__(self):
        return iter(rows[indices] for indices in self.order)

loaders = tg.Loader(Once, splits={"train": {"shuffled": True}})
""",
    "evaluation_order_is_fixed": """
loaders = tg.Loader(
    {"val": DataLoader(rows, batch_size=8, shuffle=True)}, splits={"val": {"shuffled": False}}
)
""",
    "values_are_finite": """
class Scaled(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        scan = torch.ones(9) * 3 if index == 21 else torch.arange(9.0) + index
        return {"scan": (scan - scan.mean()) / scan.std()}

loaders = tg.Loader({"val": DataLoader(Scaled(), batch_size=8)})
""",
    "labels_are_in_range": """
loaders = tg.Loader(
    {"val": DataLoader(rows, batch_size=8)}, fields={1: tg.integer("B", 0, 2)}, labels=1
)
""",
    "modalities_share_a_scale": """
batches = [{"frames": torch.full((4, 8), 0.5), "codes": torch.full((4, 8), 800.0)}] * 2
loaders = tg.Loader({"val": batches}, modalities=("frames", "codes"))
""",
    "labels_follow_inputs": """
class Apart:
    def __iter__(self):
        x, y = rows.tensors[0], rows.tensors[1][torch.randperm(50)]
        return iter([(x[i : i + 5], y[i : i + 5]) for i in range(0, 50, 5)])

loaders = tg.Loader({"val": Apart()}, labels=1)
""",
    "unobservable": """
def build():
    return DataLoader(rows, batch_size=64, drop_last=True)

loaders = tg.Loader(build)
""",
}


@pytest.mark.parametrize("name", LOADERS)
def test_a_broken_invariant(name: str, pytester: pytest.Pytester, snapshot) -> None:
    """The message names the invariant, the place, both numbers, the cause and the way on."""
    pytester.makepyfile(guard_loader=HEAD + LOADERS[name])
    select = "values_are_finite" if name == "unobservable" else name
    result = pytester.runpytest_inprocess("--trainguard", f"--trainguard-select=loader.{select}")
    text = result.stdout.str()
    assert result.ret == pytest.ExitCode.TESTS_FAILED, text

    failures = text.partition(" FAILURES ")[2].partition("\n")[2].partition("\n====")[0]

    assert failures == snapshot
    rows = [row for row in failures.splitlines() if not row.startswith("____")]
    assert all(len(row) <= 100 and row.isascii() for row in rows)
