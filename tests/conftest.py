"""What the tests need to have imported before the first of them."""

# pytester forgets the modules that a run inside this process was the first to import. This one
# registers operators, which can be done only once, and comes with the first optimizer.
import pytest
import torch._dynamo  # noqa: F401


@pytest.fixture(autouse=True)
def _outside_ci(monkeypatch) -> None:
    """Hide from runs inside a test that they are in CI, where pytest repeats whole messages."""
    for variable in ("CI", "BUILD_NUMBER"):
        monkeypatch.delenv(variable, raising=False)
