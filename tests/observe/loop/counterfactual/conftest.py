"""What the tests of questions have alike."""

import pytest

from trainguard.observe.loop.counterfactual import asking
from trainguard.observe.loop.counterfactual.first_steps import FirstSteps


@pytest.fixture(autouse=True)
def _enough_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let questions wait for each other, as declared ones do: other programs may be running."""
    monkeypatch.setattr(asking, "_CREDIT", asking._MOST)


@pytest.fixture
def first_steps() -> None:
    """Ask of the first steps too."""


@pytest.fixture(autouse=True)
def _no_first_steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask nothing of them, unless a test wants it."""
    if "first_steps" not in request.fixturenames:
        monkeypatch.setattr(FirstSteps, "install", lambda *_: None)
