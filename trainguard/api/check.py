"""Judge a declared subject without pytest: `tg.check`."""

from collections.abc import Iterable
from dataclasses import replace

from trainguard.api.verdicts import Verdicts
from trainguard.core.errors import DeclarationError
from trainguard.core.settings import Settings
from trainguard.judging.judge import (
    Observations,
    applicable,
    check_devices,
    check_excuses_apply,
    devices_present,
    verdict,
)
from trainguard.judging.verdict import Verdict
from trainguard.report.cell import render_cell
from trainguard.report.text import render_verdict
from trainguard.subjects.subject import Subject


class Broken(AssertionError):
    """Raised where an invariant is broken; its message is the whole report."""

    def __init__(self, verdicts: Iterable[Verdict]) -> None:
        self.verdicts = tuple(verdicts)
        super().__init__("\n\n".join(render_verdict(verdict) for verdict in self.verdicts))

    def _repr_html_(self) -> str:
        """Show in a notebook what is broken."""
        return render_cell("Broken", self.verdicts)


def check(
    subject: Subject,
    *,
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
    devices: Iterable[str] = (),
    profile: str = "ci",
    seed: int = 0,
    strict: bool = False,
) -> Verdicts:
    """
    Judge a declared subject without pytest and return the verdicts.

    Raises Broken with the whole report when an invariant is broken, SubjectError when the subject
    cannot be observed, DeclarationError for options that cannot be meant.
    """
    __tracebackhide__ = True
    if not isinstance(subject, Subject):
        raise DeclarationError(
            f"tg.check got {subject!r}, which is not declared. Give it what tg.Loss, tg.Schedule,"
            " tg.Model, tg.Loader or another of these returns."
        )
    options = {"select": tuple(select), "ignore": tuple(ignore), "profile": profile}
    settings = replace(Settings(strict=strict).with_values("tg.check", options), seed=seed)
    chosen = (devices,) if isinstance(devices, str) else tuple(devices)
    check_devices(chosen)
    present = chosen or devices_present()
    check_excuses_apply(subject, present)
    observations = Observations(settings)
    verdicts = Verdicts(
        verdict(subject, made, config, observations, f"tg.check({subject.name})")
        for made, config in applicable(subject, settings, present)
    )
    failed = [v for v in verdicts if v.fails]
    if failed:
        raise Broken(failed)
    return verdicts
