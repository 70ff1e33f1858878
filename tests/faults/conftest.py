"""A bench of faults: each test tries many, and tells how many were tried and how many held."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest


@dataclass
class Bench:
    """What was tried in a test, and what did not hold."""

    tried: int = 0
    fell: list[str] = field(default_factory=list)

    def hold(self, case: object, trouble: object = "") -> None:
        """Take down a case, and what is wrong with how it ended."""
        self.tried += 1
        if trouble:
            self.fell.append(f"{case!r:.200}: {trouble!s:.1000}")


def trouble(code: int | None, told: str, codes: tuple[int, ...] = (0, 1, 2, 3)) -> str:
    """Say what is wrong with the end of a command, or nothing; what it refuses it says in words."""
    if code not in codes:
        return f"it ended with {code}: {told}"
    if "Traceback" in told and code != 3:
        return f"it shows a traceback: {told}"
    return "" if told.strip() or code in (0, 1) else "it says nothing"


@pytest.fixture
def bench(record_property) -> Iterator[Bench]:
    """Yield a bench, and tell at the end what it saw."""
    made = Bench()
    yield made
    record_property("tried", made.tried)
    record_property("held", made.tried - len(made.fell))
    assert not made.fell, "\n".join(made.fell)
