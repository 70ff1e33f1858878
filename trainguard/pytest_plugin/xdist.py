"""How pytest-xdist shares out the items: those of one subject stay together on one worker."""

from collections.abc import Iterable
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]


class SubjectScheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """`--dist load`, where the items of one subject share what one worker observed."""

    def __init__(self, config: pytest.Config, log: Any, names: Iterable[str]) -> None:
        super().__init__(config, log)
        self._names = frozenset(names)

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        """Forget finished work: looking through all of it each time is slow in a large suite."""
        super().mark_test_complete(node, item_index, duration)
        assigned = self.assigned_work[node]
        for scope in [scope for scope, unit in assigned.items() if all(unit.values())]:
            del assigned[scope]

    def _split_scope(self, nodeid: str) -> str:
        """Return what is kept together: the subject of one of our items, else the test alone."""
        subject, _, last = nodeid.rpartition("::")
        return subject if subject and last.split("[")[0] in self._names else nodeid
