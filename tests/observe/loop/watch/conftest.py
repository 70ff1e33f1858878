"""What each test of a watcher needs."""

from typing import Any

import pytest

from trainguard.observe.loop.counterfactual.asking import Counterfactuals


@pytest.fixture(autouse=True)
def _no_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask no counterfactual questions: half a second of a processor for each recording."""

    def install(self: Counterfactuals, _: Any) -> None:
        """Leave the recorder without somebody who asks."""
        self.recorder.asks = None

    monkeypatch.setattr(Counterfactuals, "install", install)
