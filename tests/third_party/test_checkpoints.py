"""What others published: each way to save and resume passes everything, or has a known defect."""

from importlib import import_module

import pytest

import trainguard as tg

FILES = {
    "guard_checkpoints_torch": ("torch", "safetensors"),
    "guard_checkpoints_transformers": ("transformers", "accelerate"),
    "guard_checkpoints_lightning": ("lightning",),
}


def subjects() -> list:
    """List the subjects of each file whose packages are installed, under their variables' names."""
    found = []
    for file, packages in FILES.items():
        try:
            for package in packages:
                import_module(package)
        except ImportError:
            reason = pytest.mark.skip(reason=f"{package} is not installed")
            found.append(pytest.param(None, id=file, marks=reason))
            continue
        declared = vars(import_module(f"tests.third_party.{file}"))
        found += [
            pytest.param(subject, id=f"{packages[0]}-{name}")
            for name, subject in declared.items()
            if isinstance(subject, tg.Checkpoint)
        ]
    return found


@pytest.mark.filterwarnings("ignore")  # theirs, in processes that are forked from this one
@pytest.mark.parametrize("subject", subjects())
def test_a_published_checkpoint(subject: tg.Checkpoint) -> None:
    """Nothing is broken but what is excused, and every excuse is needed."""
    verdicts = tg.check(subject, devices=["cpu"])
    assert [v.invariant.name for v in verdicts if v.notes] == []
