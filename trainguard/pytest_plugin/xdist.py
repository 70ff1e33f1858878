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

    def remove_node(self, node: Any) -> str | None:
        """
        Give the work of a worker that died to others, but for what it died of.

        That would end them too: the other items of a subject are skipped with a reference to the
        one that ended its worker.
        """
        assigned = self.assigned_work[node]
        scope = next((scope for scope, unit in assigned.items() if not all(unit.values())), None)
        if scope is None:
            ended: str | None = super().remove_node(node)
            return ended
        ended, *others = [item for item, over in assigned.pop(scope).items() if not over]
        super().remove_node(node)
        for item in others:
            self._skip(item, f"its subject ended the process in {ended}")
        return ended

    def _skip(self, item: str, why: str) -> None:
        """Report an item that no worker will run."""
        path = item.partition("::")[0]
        report = pytest.TestReport(
            item, (path, None, item), {}, "skipped", (path, 0, f"Skipped: {why}"), "setup"
        )
        self.config.hook.pytest_runtest_logreport(report=report)

    def _split_scope(self, nodeid: str) -> str:
        """Return what is kept together: the subject of one of our items, else the test alone."""
        subject, _, last = nodeid.rpartition("::")
        return subject if subject and last.split("[")[0] in self._names else nodeid
