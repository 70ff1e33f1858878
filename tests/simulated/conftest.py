"""
What tests on a simulated accelerator share: the accelerator itself.

It stays in its process for good, and other tests would judge on it too. So these tests run alone:
by `nox -s simulated`, or `pytest tests/simulated`. Where TRAINGUARD_ACCELERATOR=cuda, say, the
fixtures are judged on the real devices of that type (`pytest tests/simulated/test_fixtures.py`).
"""

import os
import warnings
from pathlib import Path

import pytest
import torch

from tests.simulated.device import NAME, REAL, CannotBeBuilt, register

HERE = Path(__file__).parent
KIND = os.environ.get(REAL, NAME)
COUNT = 2 if KIND == NAME else min(2, torch.get_device_module(KIND).device_count())
DEVICES = tuple(f"{KIND}:{number}" for number in range(COUNT))
_ALONE = "run by `nox -s simulated`: a simulated accelerator stays in its process for good"


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark these tests, and skip them where others would be run in the same process."""
    own = [item for item in items if item.path.is_relative_to(HERE)]
    alone = len(own) == len(items) or config.getoption("markexpr") == "simulated"
    for item in own:
        item.add_marker(pytest.mark.simulated)
        item.add_marker(pytest.mark.filterwarnings("ignore::UserWarning"))  # of the CPU's kernels
        if not alone:
            item.add_marker(pytest.mark.skip(reason=_ALONE))


@pytest.fixture(scope="session", autouse=True)
def _simulated() -> None:
    """Build and register the accelerator, once; skip all where there is no compiler."""
    if KIND != NAME:
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, about compilers
            register()
    except CannotBeBuilt as error:
        pytest.skip(str(error))


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    """Return each of the devices."""
    return request.param
