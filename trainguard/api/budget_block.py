"""A block of code that is held to a budget as it runs: `guard.budget()` in an ordinary test."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self

from trainguard.core.errors import DeclarationError, SubjectError, did_you_mean
from trainguard.core.settings import Settings
from trainguard.events.trace import Trace, Usage
from trainguard.judging.judge import (
    Finished,
    Observations,
    applicable,
    check_excuses_apply,
    verdict,
)
from trainguard.judging.verdict import Config, Verdict
from trainguard.subjects.budget import CATEGORIES, Budget
from trainguard.subjects.subject import Subject

LIMITS: Final = ("peak", *(name for name in CATEGORIES if name != "averages"))


@dataclass(frozen=True, eq=False, kw_only=True)
class Body(Subject):
    """
    A block of code with a budget.

    budget: what it may hold. It is measured once, while it runs.
    """

    family: ClassVar[str] = "memory"

    budget: Budget | None = None

    @property
    def families(self) -> tuple[str, ...]:
        """The one family of invariants that judges it."""
        return (self.family,)


class BudgetBlock:
    """
    A with-block whose memory is followed; what it took can be judged once it is left.

    `trace` holds what was seen. A block that runs out of memory is judged too, with what it held.
    """

    silence = ""

    def __init__(
        self, kind: str, name: str, allow: Mapping[str, str], limits: Mapping[str, Any]
    ) -> None:
        __tracebackhide__ = True
        for option in limits:
            if option not in LIMITS:
                known = did_you_mean(option, (*LIMITS, "name", "allow"))
                raise DeclarationError(f"{kind} has no limit {option!r}.{known}")
        if not limits:
            raise DeclarationError(f"{kind}() allows anything. Write {kind}(peak='300 MiB').")
        try:
            self.body = Body(budget=Budget(**limits), name=name, allow=dict(allow))
        except DeclarationError as error:
            raise DeclarationError(str(error).replace("tg.Budget", kind)) from None
        check_excuses_apply(self.body, ())
        self._trace: Trace[Usage] | None = None
        self._meter: Any = None

    def __enter__(self) -> Self:
        """Start to follow."""
        from trainguard.observe.memory.block_meter import BlockMeter  # late: it imports torch

        self._meter = BlockMeter()
        self._meter.start()
        return self

    def __exit__(self, *raised: Any) -> None:
        """Stop following and keep what was seen; the block's own exception goes on its way."""
        self._meter.stop()
        self._trace = self._make_trace(raised[1])

    @property
    def trace(self) -> Trace[Usage]:
        """What was seen, once the block is left."""
        if self._trace is None:
            raise RuntimeError("the block is still running: ask after the with-block")
        return self._trace

    @property
    def ran_out(self) -> bool:
        """Whether the block ran out of memory."""
        return any(seen.quantity == "stopped" for seen in self.trace)

    def judge(self, settings: Settings, rerun: str = "") -> tuple[Verdict, ...]:
        """Judge what the block took by all that its budget says."""
        observations = Observations(settings)
        observations.keep(self.body, Config(), Finished(self.trace, "step", "block"))
        chosen = [made for made, _ in applicable(self.body, settings, ()) if made.probe == "step"]
        return tuple(
            verdict(self.body, made, Config(), observations, rerun, self.silence) for made in chosen
        )

    def _make_trace(self, error: BaseException | None) -> Trace[Usage]:
        """Return what the block took; nothing at all where it took nothing."""
        try:
            usages = tuple(self._meter.usages(error))
        except SubjectError:
            usages = ()
        conditions = {"family": "body"}
        return Trace(self.body.name, usages, conditions, self.body.promises)


def check_allocates(metered: BudgetBlock) -> None:
    """Raise SubjectError for a block that allocated nothing: it would keep any budget."""
    if not len(metered.trace):
        raise SubjectError(
            f"`{metered.body.name}` allocates no tensor, so that there is nothing to judge",
            "Tensors in processes that it starts are not seen.",
        )
