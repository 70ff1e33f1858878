"""
Observe a subject, judge what was seen, and drop what is excused: the way in without pytest.

This is where the two halves meet. Observers run the team's code and hand back traces; judges
turn traces into findings and know neither torch nor pytest.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, Protocol

from trainguard.core.catalogue import Invariant, Judge, check_globs, matches, of_families
from trainguard.core.errors import DeclarationError, SubjectError, Unjudged
from trainguard.core.finding import Finding, Rank
from trainguard.core.settings import Settings
from trainguard.events.base import EVERYTHING
from trainguard.events.loop import Step
from trainguard.events.trace import Trace
from trainguard.judging.lost import explain_loss, hide_lost
from trainguard.judging.verdict import Config, Verdict, configs, observed_as
from trainguard.observe.log.entry import read_log
from trainguard.subjects.log import Log
from trainguard.subjects.loop import Run
from trainguard.subjects.subject import Subject

Key = tuple[int, str, Config]  # subject, family, and the configuration that is observed


class Observation(Protocol):
    """What an observer offers: traces by probe, and a smaller counterexample of a finding."""

    @property
    def points(self) -> int:
        """How much was seen."""

    def trace(self, probe: str) -> Trace[Any]:
        """Return the trace of one probe; observed at the first call, kept for the others."""

    def shrink(self, finding: Finding, judge: Judge) -> Finding:
        """Return the finding at the smallest case that the judge still objects to."""


@dataclass(slots=True)
class Observations:
    """Observe each subject once per configuration, and share it between the invariants."""

    settings: Settings
    _made: dict[Key, Observation] = field(default_factory=dict)
    _seen: set[Key] = field(default_factory=set)
    _faults: dict[Key, SubjectError] = field(default_factory=dict)

    def keep(self, subject: Subject, config: Config, made: Observation, family: str = "") -> None:
        """Take over an observation that was made elsewhere, such as a run that is over."""
        self._made[_key(subject, family or subject.family, config)] = made

    def of(self, subject: Subject, config: Config, family: str = "") -> Observation:
        """Return what a family, its own if none is named, observes of a subject; made once."""
        key = _key(subject, family or subject.family, config)
        if key not in self._made and isinstance(subject, Log):
            read = Finished(read_log(subject), what="log")
            self._made.update((_key(subject, each, config), read) for each in subject.families)
        if key not in self._made:
            from trainguard.observe.entry import observe  # late: it imports torch

            _, observed, seen = key
            self._made[key] = observe(observed, subject, seen.device, seen.dtype, self.settings)
        return self._made[key]

    def trace(self, subject: Subject, config: Config, made: Invariant) -> Trace[Any]:
        """
        Return the trace that an invariant judges.

        A subject that fails before anything of it was seen is not tried again for other probes:
        one that hangs would otherwise take its whole time once for each.
        """
        key = _key(subject, made.family, config)
        if key in self._faults:
            raise self._faults[key]
        try:
            trace = self.of(subject, config, made.family).trace(made.probe)
        except SubjectError as fault:
            if key not in self._seen:
                self._faults[key] = fault
            raise
        self._seen.add(key)
        return trace


def _key(subject: Subject, family: str, config: Config) -> Key:
    """Return what the observation of a subject for a family of invariants is kept under."""
    return id(subject), family, observed_as(subject, config, family)


def devices_present() -> tuple[str, ...]:
    """Return the devices of this machine; this is where torch is imported."""
    from trainguard.observe.tools.devices import present

    return present()


def why_absent(device: str) -> str:
    """Say that a device is not in this machine, or nothing; raises DeclarationError for no name."""
    from trainguard.observe.tools.devices import is_known, is_present

    here = ", ".join(devices_present())
    if not is_known(device):
        raise DeclarationError(
            f"PyTorch knows no device {device!r}. Import what registers it, or name one of {here}."
        )
    return "" if is_present(device) else f"the device {device!r} is not present here, only {here}"


def check_devices(devices: Iterable[str]) -> None:
    """Raise DeclarationError for a device that is not here, or that torch has never heard of."""
    for device in devices:
        if why := why_absent(device):
            raise DeclarationError(f"{why[:1].upper()}{why[1:]}.")


def applicable(
    subject: Subject, settings: Settings, devices: tuple[str, ...]
) -> list[tuple[Invariant, Config]]:
    """List what is judged on a subject: each invariant with each configuration it is judged on."""
    check_globs("select", settings.select)
    check_globs("ignore", settings.ignore)
    promised = subject.promise_names | ({"devices"} if len(devices) > 1 else set())
    items = []
    for made in of_families(subject.families):
        chosen = not settings.select or matches(made, settings.select)
        chosen &= made.logs or not subject.is_log
        if chosen and not matches(made, settings.ignore) and made.needs <= promised:
            items += [(made, config) for config in configs(made, subject, settings, devices)]
    return items


def check_excuses_apply(subject: Subject, devices: tuple[str, ...]) -> None:
    """Raise DeclarationError for an excuse of something that is never judged on this subject."""
    judged = {made.name for made, _ in applicable(subject, Settings(), devices)}
    for name in subject.allow:
        needs = next(made.needs for made in of_families(subject.families) if made.name == name)
        if name not in judged and "devices" not in needs:
            lacks = ", ".join(sorted(needs - subject.promise_names)) or "another dtype"
            raise DeclarationError(
                f"{subject.name} excuses {name!r}, which is not judged on it: it needs {lacks}."
                " Drop the excuse."
            )


def verdict(
    subject: Subject,
    invariant: Invariant,
    config: Config,
    observations: Observations,
    rerun: str = "",
    silence: str = "",
) -> Verdict:
    """Judge one invariant on one subject; a fault of the subject itself is a SubjectError."""
    started = perf_counter()
    judged = Verdict(subject, invariant, config, "passed", rerun=rerun, silence=silence)
    try:
        trace = hide_lost(observations.trace(subject, config, invariant))
        found = _merge_findings(invariant.judge(trace))
        missing = "" if found else invariant.evidence(trace)
    except Unjudged as why:
        missing = str(why)
    if missing:
        return replace(judged, outcome="skipped", reason=missing)
    observation = observations.of(subject, config, invariant.family)
    reason = subject.allow.get(invariant.name)
    judged = replace(
        judged,
        findings=tuple(found),
        strict=observations.settings.strict,
        reason=reason or "",
        points=observation.points,
    )
    if reason is not None:  # an excuse for nothing is stale
        judged = replace(judged, outcome="excused" if found else "stale")
    elif judged.breaches:
        # Only what is shown in full is worth the search for its smallest case.
        least = {id(f): _smallest(observation, f, invariant.judge) for f in judged.breaches}
        found = [least.get(id(f), f) for f in found]
        judged = replace(judged, outcome="broken", findings=tuple(found))
    return replace(judged, seconds=perf_counter() - started)


def _merge_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Say once what is found at several places: the first in full, the others by their place."""
    kinds: dict[tuple[Rank, str], list[Finding]] = {}
    for finding in findings:
        kinds.setdefault((finding.rank, finding.summary), []).append(finding)
    return [
        replace(first, elsewhere=tuple(f.at for f in more if f.at))
        for first, *more in kinds.values()
    ]


def _smallest(observation: Observation, finding: Finding, judge: Judge) -> Finding:
    """Return the finding at its smallest counterexample, where it can be made smaller."""
    if finding.event is None:
        return finding
    return replace(observation.shrink(finding, judge), elsewhere=finding.elsewhere)


@dataclass(slots=True)
class Finished:
    """The observation of a run or a block that is over: its trace is all that can be asked for."""

    recorded: Trace[Any]
    probe: str = "run"
    what: str = "run"

    @property
    def points(self) -> int:
        """How much was seen."""
        return len(self.recorded)

    def trace(self, probe: str) -> Trace[Any]:
        """Return the trace, or say that it would have to be run again."""
        if probe != self.probe:
            raise Unjudged(f"a {self.what} that is over has no probe {probe!r}")
        return self.recorded

    def shrink(self, finding: Finding, _judge: Judge) -> Finding:
        """Return the finding as it is: what is over cannot be made smaller."""
        return finding


def judge_run(
    run: Run | Log,
    trace: Trace[Any],
    settings: Settings,
    rerun: str = "",
    silence: str = "",
    *,
    joined: bool = False,
    survives: bool = False,
) -> tuple[Verdict, ...]:
    """
    Judge a trace that is already there, by all that applies to it and needs no second run.

    joined: whether it is that of several processes, and not of one. survives: whether a judgement
    that raises is a verdict without an answer, and nothing of what the others find is lost.
    """
    check_excuses_apply(run, ())
    every = [made for made, _ in applicable(run, settings, ()) if made.probe == "run"]
    chosen = [made for made in every if (made.family == "ranks") == joined]
    observations = Observations(settings)
    for family in run.families:
        observations.keep(run, Config(), Finished(trace), family)
    judge = _survive if survives else verdict
    return tuple(judge(run, made, Config(), observations, rerun, silence) for made in chosen)


def _survive(
    run: Subject,
    made: Invariant,
    config: Config,
    observations: Observations,
    rerun: str,
    silence: str,
) -> Verdict:
    """Judge one invariant, and return a verdict where that raises too."""
    try:
        return verdict(run, made, config, observations, rerun, silence)
    except Exception as error:  # noqa: BLE001 ours, or that of a team's own invariant
        reason = f"the judgement itself failed ({type(error).__name__}: {error})"
        return Verdict(run, made, config, "skipped", reason=reason, crash=error)


def check_steps(run: Run, trace: Trace[Any]) -> None:
    """Raise SubjectError for a trace with nothing to judge: it would pass everything."""
    lost = trace.conditions.get("lost")
    if isinstance(lost, tuple) and EVERYTHING in lost:
        raise SubjectError(
            f"`{run.name}` made {trace.conditions.get('steps')} training steps that were counted"
            " and cannot be judged",
            f"{explain_loss(trace)[:1].upper()}{explain_loss(trace)[1:]}.",
        )
    if not any(isinstance(event, Step) for event in trace):
        passes = trace.conditions.get("backwards", 0)
        raise SubjectError(
            f"`{run.name}` made no training step, so that there is nothing to judge",
            f"Its {passes} passes backward moved nothing: see that `optimizer.step()` is called,"
            " with its parentheses."
            if passes
            else "Steps in processes that it starts are not seen.",
        )
