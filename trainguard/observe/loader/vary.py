"""Draw the settings of declared loaders with Hypothesis, and find the smallest that fails."""

from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any

from hypothesis import strategies as st
from hypothesis.errors import Flaky

from trainguard.core.finding import Finding
from trainguard.core.settings import Settings
from trainguard.observe.tools.structure import SHRINKING, explore
from trainguard.subjects.loader import Loader

Setting = dict[str, Any]
DRAWS = {"quick": 3, "ci": 8, "thorough": 50}
_SHRINKING = 10.0  # seconds


class _FailingVariant(Exception):
    """Tells Hypothesis that a setting fails, so that it looks for a smaller one."""


def draw(loader: Loader, count: int, seed: int) -> list[Setting]:
    """Draw up to `count` different settings; one empty one without `vary`."""
    drawn: list[Setting] = []

    def collect(setting: Setting) -> None:
        """Keep a setting that is new."""
        if setting not in drawn:
            drawn.append(setting)

    if not loader.vary:
        return [{}]
    explore(_settings_of(loader), collect, count, seed)
    return drawn


def smallest(
    loader: Loader,
    found_in: Callable[[Setting], Finding | None],
    known: Setting,
    finding: Finding,
    settings: Settings,
) -> tuple[Setting, Finding]:
    """Return the smallest setting that fails alike, with what is found in it."""
    failing = [(known, finding)]
    started = monotonic()

    def judge(setting: Setting) -> None:
        """Report a setting that fails to Hypothesis, which ends with the smallest one."""
        found = found_in(setting) if monotonic() - started < _SHRINKING else None
        if found is not None:
            failing.append((setting, found))
            raise _FailingVariant

    with suppress(_FailingVariant, Flaky):
        count, seed = DRAWS[settings.profile], settings.seed
        explore(_settings_of(loader), judge, count, seed, SHRINKING)
    return failing[-1]


def call(loader: Loader, setting: Setting) -> str:
    """Write the call of the factory in a setting, as code."""
    given = {**loader.arguments, **setting}
    return f"{loader.name}({', '.join(f'{name}={value!r}' for name, value in given.items())})"


def _settings_of(loader: Loader) -> st.SearchStrategy[Setting]:
    """Return the strategy of all settings that a declaration admits."""
    return st.fixed_dictionaries(dict(loader.vary))
