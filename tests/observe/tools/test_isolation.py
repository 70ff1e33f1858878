"""Whatever a component does to global state, it is as it was afterwards."""

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

from trainguard.observe.tools.isolation import (
    SETTINGS,
    flushes_denormals,
    isolate,
    restore,
    seed_everything,
    settings_now,
)

EDITS: dict[str, Callable[[], object]] = {
    "default dtype": lambda: torch.set_default_dtype(torch.float64),
    "grad mode": lambda: torch.set_grad_enabled(False),
    "deterministic": lambda: torch.use_deterministic_algorithms(True),
    "warn only": lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True),
    "benchmark": lambda: setattr(torch.backends.cudnn, "benchmark", True),
    "cudnn deterministic": lambda: setattr(torch.backends.cudnn, "deterministic", True),
    "threads": lambda: torch.set_num_threads(torch.get_num_threads() + 2),
}


def streams() -> tuple[list[int], list[int], object]:
    """Return the state of the three global random streams."""
    return (torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate())


@pytest.mark.parametrize("edit", EDITS)
def test_settings_come_back(edit: str) -> None:
    """A changed setting is put back, also where the block raises."""
    before = settings_now()
    with isolate():
        EDITS[edit]()
        assert settings_now() != before
    assert settings_now() == before
    with pytest.raises(ZeroDivisionError), isolate():
        EDITS[edit]()
        raise ZeroDivisionError
    assert settings_now() == before


def test_every_setting_is_edited_above() -> None:
    """A setting that is added to the list is to be tested here."""
    assert len(EDITS) == len(SETTINGS)


@pytest.mark.parametrize("edit", EDITS)
def test_what_changed_is_told(edit: str) -> None:
    """`restore` names the setting with its value before and after."""
    with isolate():
        before = settings_now()
        EDITS[edit]()
        changed = restore(before)
        assert settings_now() == before
        assert 1 <= len(changed) <= 2
        for name, was, found in changed:
            assert (was, name in SETTINGS, found != was) == (before[name], True, True)
        assert restore(before) == []


def test_streams_come_back() -> None:
    """What is drawn or seeded inside the block changes no stream outside it."""
    before = streams()
    with pytest.raises(KeyError), isolate(seed=5):
        seed_everything(7)
        torch.rand(3), np.random.rand(3), random.random()
        raise KeyError
    assert streams() == before


def test_the_block_is_seeded() -> None:
    """A block draws what its seed says, whatever was drawn before it."""

    def drawn(seed: int) -> tuple[float, float, float]:
        with isolate(seed):
            return (float(torch.rand(())), float(np.random.rand()), random.random())

    first = drawn(3)
    torch.rand(2), np.random.rand(2), random.random()
    assert drawn(3) == first
    assert drawn(4) != first


def test_a_large_seed() -> None:
    """NumPy takes seeds of 32 bits only; a longer one seeds it all the same."""
    with isolate(2**40 + 1):
        large = np.random.rand()
    with isolate(1):
        assert np.random.rand() == large


def test_the_block_has_one_thread_and_gradients() -> None:
    """Whatever the run is set to, an observation has one thread and gradients."""
    with torch.no_grad(), isolate():
        assert torch.get_num_threads() == 1
        assert torch.is_grad_enabled()


def test_the_block_has_denormal_numbers() -> None:
    """Whether they are turned off is the same after it, also where the block turned them off."""
    for before in (False, True):
        torch.set_flush_denormal(before)
        try:
            with isolate():
                assert not flushes_denormals()
                torch.set_flush_denormal(True)
            assert flushes_denormals() == before
        finally:
            torch.set_flush_denormal(False)


def test_blocks_nest() -> None:
    """An inner block gives the outer one its streams and settings back."""
    with isolate(1):
        torch.set_default_dtype(torch.float64)
        before = streams()
        with isolate(2):
            torch.set_default_dtype(torch.float16)
            torch.rand(3)
        assert (torch.get_default_dtype(), streams()) == (torch.float64, before)
