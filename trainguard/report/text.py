"""Turn findings into text. This is the only module that lays out words for people."""

import inspect
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import MISSING, fields
from functools import cache
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from textwrap import shorten, wrap
from traceback import TracebackException, extract_tb, format_exception

from trainguard.core.catalogue import Invariant
from trainguard.core.errors import PASSED_BY, SubjectError
from trainguard.core.finding import Finding
from trainguard.core.notebook import short_source
from trainguard.events.base import Event
from trainguard.events.trace import Trace
from trainguard.judging.verdict import Verdict
from trainguard.subjects.subject import Subject

WIDTH = 100
_LABEL = 12
_MOST_EVENTS = 20
_MOST_SHOWN = 3  # findings of one verdict
_MOST_PLACES = 2  # beside the first
_PACKAGE = str(Path(__file__).parents[1])


def render_verdict(verdict: Verdict) -> str:
    """Lay out what fails of a verdict: each breach in full, or the excuse that excuses nothing."""
    if verdict.outcome == "stale":
        return _render_stale(verdict)
    shown = [render(finding, verdict) for finding in verdict.breaches[:_MOST_SHOWN]]
    more = len(verdict.breaches) - len(shown)
    parts = [*shown, *([f"... and {more} more like these"] if more else [])]
    pictures = [f"  picture   {file}" for file in verdict.pictures]
    return "\n".join(["\n\n".join(parts), *pictures])


def render(finding: Finding, verdict: Verdict) -> str:
    """Lay out one finding, at most ten rows of 100 columns; absent rows are omitted."""
    subject, invariant = verdict.subject, verdict.invariant
    config = str(verdict.config).replace("-", ", ")
    where = ", ".join(part for part in (finding.at, config) if part) + _others(finding)
    return _layout(
        f"{invariant.name}: {finding.summary}",
        at=_with_source(where, subject, finding.source),
        measured=finding.measured,
        allowed=finding.allowed,
        curve=finding.curve,
        smallest=finding.smallest,
        why=finding.why,
        rerun=verdict.rerun,
        silence=silence_of(verdict),
        read=read_more(invariant),
    )


def silence_of(verdict: Verdict) -> str:
    """Return how to excuse what a verdict found: an option, or what is added to a declaration."""
    kind = type(verdict.subject).__name__
    silence = verdict.silence or f'tg.{kind}(..., allow={{"NAME": "<reason>"}})'
    return silence.replace("NAME", verdict.invariant.name)


def read_more(made: Invariant) -> str:
    """Return where an invariant is explained: on its page, where it is ours and there is a site."""
    site = _find_site() if made.judge.__module__.startswith("trainguard.") else ""
    return f"{site}/invariants/{made.key}.html" if site else f"trainguard explain {made.name}"


@cache
def _find_site() -> str:
    """Return the address of the documentation as pyproject.toml tells it; empty without one."""
    with suppress(PackageNotFoundError):
        urls = metadata("trainguard").get_all("Project-URL") or []
        told = dict(url.split(", ", 1) for url in urls)
        return str(told.get("Documentation", "")).rstrip("/")
    return ""


def render_note(finding: Finding, invariant: Invariant) -> str:
    """Lay out a note for the closing section; the summary names the subject."""
    shown = ": ".join(part for part in (finding.at, finding.measured) if part)
    shown = ", ".join(part for part in (shown, short_source(finding.source)) if part)
    return f"{invariant.name}: {finding.summary}{f' ({shown})' if shown else ''}"


def render_fault(subject: Subject, invariant: Invariant, fault: SubjectError, rerun: str) -> str:
    """Lay out why a subject could not be observed, so that nothing was judged."""
    return _layout(
        f"{invariant.name}: `{subject.name}` could not be observed: {fault.sentence}",
        at=_with_source("", subject),
        smallest=fault.call,
        why=fault.remedy,
        rerun=rerun,
    )


def render_cause(fault: SubjectError) -> str:
    """Lay out the traceback of the user's own exception, without the frames that are ours."""
    return "" if fault.__cause__ is None else render_traceback(fault.__cause__)


def render_traceback(error: BaseException) -> str:
    """Lay out the whole traceback of the user's own exception, without the frames that are ours."""
    told = TracebackException.from_exception(error)
    links: list[TracebackException | None] = [told]
    while links:
        link = links.pop()
        if link is not None:
            link.stack[:] = [f for f in link.stack if not _is_hidden(f.filename)]
            links += [link.__cause__, link.__context__, *(link.exceptions or ())]
    return "".join(told.format()).rstrip()


def _is_hidden(file: str) -> bool:
    """Say whether a frame is ours, or stands where a function of torch's calls ours."""
    return file.startswith(_PACKAGE) or file.endswith(PASSED_BY)


def render_crash(error: BaseException, invariant: Invariant | None = None) -> str:
    """Lay out a fault of trainguard itself, or of a team's own invariant, with its traceback."""
    home = "" if invariant is None else inspect.getfile(invariant.judge)
    if (
        invariant is not None
        and not home.startswith(_PACKAGE)
        and any(frame.filename == home for frame in extract_tb(error.__traceback__))
    ):
        told = f"the invariant {invariant.name}, defined in {home}, failed"
    else:
        told = "trainguard itself failed: please report it with this traceback"
    trace = "".join(format_exception(error)).rstrip()
    return f"{told}\nThis says nothing about the subject.\n\n{trace}"


def render_trace(trace: Trace[Event], probe: str) -> str:
    """Lay out the first events of a trace, one to a line, with what is not at its default."""
    lines = [_event(event) for event in trace.events[:_MOST_EVENTS]]
    left = len(trace) - len(lines)
    head = f"trace of the probe `{probe}`, {len(trace)} events"
    return "\n".join([head, *lines, *([f"  ... and {left} more"] if left else [])])


def render_rows(head: Sequence[str], rows: Sequence[tuple[str, str]]) -> str:
    """Lay out labelled rows under lines that have no label, as the closing section has them."""
    lines = [line for text in head for line in wrap(text, WIDTH)]
    return "\n".join([*lines, *(line for label, text in rows for line in _row(label, text))])


def _render_stale(verdict: Verdict) -> str:
    """Lay out an excuse that excuses nothing, or what a baseline has and a run has not."""
    subject, name = verdict.subject, verdict.invariant.name
    if verdict.mended:
        more = len(verdict.mended) - 1
        return _layout(
            f"{name}: `{subject.name}` is mended, and must leave the baseline",
            at=verdict.mended[0] + (f" (and {more} more)" if more else ""),
            why=verdict.reason,
            rerun=verdict.rerun,
        )
    return _layout(
        f"{name}: `{subject.name}` is excused and does not break it",
        at=_with_source(str(verdict.config).replace("-", ", "), subject),
        why=f'the excuse "{verdict.reason}" is stale',
        rerun=verdict.rerun,
        silence=f"remove {name!r} from {'--' * ('--' in verdict.silence)}allow",
    )


def _others(finding: Finding) -> str:
    """Write the first of the other places at which the same was found, and how many more."""
    places = [place for place in dict.fromkeys(finding.elsewhere) if place != finding.at]
    more = len(places) - _MOST_PLACES
    shown = ", ".join(places[:_MOST_PLACES]) + (f" and {more} more" if more > 0 else "")
    return f" (and {shown})" if shown else ""


def _event(event: Event) -> str:
    """Write one event on one line: what it is, and what of it is not at its default."""
    told = [
        f"{column.name}={value!r}"
        for column in fields(event)
        if (value := getattr(event, column.name)) != _default(column.default)
    ]
    return "  " + shorten(f"{type(event).__name__} {' '.join(told)}", WIDTH - 2, placeholder=" ...")


def _default(default: object) -> object:
    """Return a field's default, and for a field without one a value that equals nothing."""
    return object() if default is MISSING else default


def _layout(head: str, **rows: str) -> str:
    """Put the rows under the first line, each label in its column, long ones wrapped."""
    lines = wrap(
        head, WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )
    for label, text in rows.items():
        if text:
            lines += _row(label, text)
    return "\n".join(lines)


def _row(label: str, text: str) -> list[str]:
    """Wrap one row; code is only broken at spaces, so that it can still be pasted."""
    if label == "at" and len(text) <= WIDTH - _LABEL:
        return [f"  {label:<{_LABEL - 2}}{text}"]
    parts = wrap(text, WIDTH - _LABEL - 2, break_long_words=False, break_on_hyphens=False)
    if label == "rerun":  # for a shell
        parts = [f"{part} \\" for part in parts[:-1]] + parts[-1:]
    first, *rest = parts or [""]  # a text of blanks alone
    return [f"  {label:<{_LABEL - 2}}{first}", *(" " * _LABEL + part for part in rest)]


def _with_source(where: str, subject: Subject, found: str = "") -> str:
    """Put the line that did it, or else that of the declaration, at the right end of `at`."""
    source = short_source(found or (f"{subject.file}:{subject.line}" if subject.file else ""))
    if not where:
        return source
    room = WIDTH - _LABEL - len(where) - len(source)
    return f"{where}{' ' * max(room, 2)}{source}".rstrip() if source else where
