"""What a user reads when loaders break what is tried on them: whole messages, as printed."""

import re

import pytest

# pytester forgets modules that a run inside this process was the first to import, and torch
# cannot be imported twice.
import trainguard.observe.loader.observer
import trainguard.observe.loader.reproduce
import trainguard.observe.loader.resume
import trainguard.observe.loader.scan
import trainguard.observe.loader.shards
import trainguard.observe.loader.storage
import trainguard.observe.loader.transform
import trainguard.observe.loader.workers
import trainguard.pytest_plugin.session  # noqa: F401

HEAD = """
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset
import trainguard as tg

ROWS = torch.randn(40, 4, generator=torch.Generator().manual_seed(1))

"""
# One loader for each invariant, wrong in the way that the invariant is about.
LOADERS = {
    "workers_draw_different_numbers": """
class Noisy(Dataset):
    def __init__(self):
        self.rng = np.random.default_rng(0)

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return ROWS[index] + self.rng.random()

def build():
    return DataLoader(Noisy(), batch_size=4, num_workers=2)

audio = tg.Loader(build, splits={"train": {}})
""",
    "shards_partition_the_data": """
def build(rank=0, world_size=1):
    return DataLoader(TensorDataset(ROWS[rank:]), batch_size=4)

audio = tg.Loader(build, splits={"train": {}}, ranks=(1, 2, 4))
""",
    "transform_round_trips": """
def build():
    return DataLoader(TensorDataset(ROWS), batch_size=4)

audio = tg.Loader(
    build,
    splits={"train": {}},
    transform=lambda x: ((x + 1) * 127.5).round().to(torch.uint8),
    inverse=lambda codes: codes / 128 - 1,
    values=tg.real("B T", -1, 1),
    tolerance=1 / 255,
)
""",
    "order_is_reproducible": """
def build():
    generator = torch.Generator()
    generator.seed()
    dataset = TensorDataset(ROWS.clone())
    return DataLoader(dataset, batch_size=4, shuffle=True, generator=generator)

audio = tg.Loader(build, splits={"train": {}})
""",
    "resume_continues_the_epoch": """
def build():
    return DataLoader(TensorDataset(ROWS), batch_size=4)

audio = tg.Loader(
    build, splits={"train": {}}, resume=(lambda loader: 0, lambda loader, state: None)
)
""",
    "batches_are_independent": """
BUFFER = torch.empty(4, 4)

def collate(samples):
    return torch.stack([sample for sample, in samples], out=BUFFER)

def build():
    return DataLoader(TensorDataset(ROWS), batch_size=4, collate_fn=collate)

audio = tg.Loader(build, splits={"train": {}})
""",
}


@pytest.mark.parametrize("name", LOADERS)
def test_a_broken_invariant(name: str, pytester: pytest.Pytester, snapshot) -> None:
    """The message names the invariant, the place, both numbers, the likely cause and the way on."""
    pytester.makepyfile(guard_audio=HEAD + LOADERS[name])
    result = pytester.runpytest_inprocess("--trainguard", f"--trainguard-select=loader.{name}")
    text = result.stdout.str()
    assert result.ret == pytest.ExitCode.TESTS_FAILED, text

    failures = text.partition(" FAILURES ")[2].partition("\n")[2].partition("\n====")[0]

    assert failures == snapshot
    for one in re.split(r"\n\n|\n(?=____)", failures):
        rows = [row for row in one.splitlines() if not row.startswith("____")]
        assert all(len(row) <= 100 and row.isascii() for row in rows)
        assert len([row for row in rows if row[:3] != "   "]) <= 10
