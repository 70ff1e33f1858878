"""What the tests of questions have alike."""

import pytest

from trainguard.observe.loop.counterfactual import asking


@pytest.fixture(autouse=True)
def _enough_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let questions wait for each other, as declared ones do: other programs may be running."""
    monkeypatch.setattr(asking, "_CREDIT", asking._MOST)
