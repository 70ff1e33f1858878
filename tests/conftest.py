"""What the tests need to have imported before the first of them."""

# pytester forgets the modules that a run inside this process was the first to import. This one
# registers operators, which can be done only once, and comes with the first optimizer.
import pytest
import torch._dynamo  # noqa: F401

# What is run by `nox -s slow`, so that `nox -s tests` keeps within a quarter of an hour.
SLOW = ("tests/authors/", "tests/frameworks/", "tests/third_party/")


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the slow tests, by the folders that they stand in."""
    for item in items:
        if item.nodeid.startswith(SLOW):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def _outside_ci(monkeypatch) -> None:
    """Hide from runs inside a test that they are in CI, where pytest repeats whole messages."""
    for variable in ("CI", "BUILD_NUMBER"):
        monkeypatch.delenv(variable, raising=False)
