"""`trainguard memory`: follow one training step, and report where its memory goes."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from trainguard.command.exit_codes import CLEAN, FAILED, FOUND, USAGE
from trainguard.command.memory.document import document
from trainguard.command.memory.fit import FitSearch
from trainguard.command.memory.page import page
from trainguard.command.memory.picture import picture
from trainguard.command.memory.report import report
from trainguard.command.memory.request import (
    MemoryRequest,
    check,
    dimensions_of,
    subject_of,
    survey_of,
)
from trainguard.core.errors import SubjectError
from trainguard.events.memory import Breakdown, Fit, MemoryReport
from trainguard.report.json import write_whole
from trainguard.report.progress import showing
from trainguard.report.text import render_cause


def run(order: MemoryRequest) -> int:
    """
    Follow the step that is asked about, report it, write the files, and return the exit code.

    Raises DeclarationError, before anything is run, for what cannot be meant.
    """
    check(order)
    try:
        subject = subject_of(order)
        survey = survey_of(order, subject)
        dimensions = dimensions_of(order, subject)
        with telling() as tell:
            tell(f"following a step of {subject.name}")
            breakdown = survey.breakdown()
            fits = tuple(_fits(order, survey, breakdown, dimensions, tell))
    except SubjectError as fault:
        return _report_failure(order, fault)
    account = MemoryReport(target=order.target, breakdown=breakdown, budget=order.budget, fits=fits)
    written = _write(order, account, survey)
    sys.stdout.write(report(account))
    if not written:
        return USAGE
    return FOUND if account.spare is not None and account.spare < 0 else CLEAN


def _fits(
    order: MemoryRequest,
    survey: Any,
    breakdown: Breakdown,
    dimensions: Sequence[str],
    tell: Callable[[str], None],
) -> Iterator[Fit]:
    """Yield what fits into the budget; nothing is tried with real tensors."""
    if order.budget is None or not breakdown.how.startswith("predicted"):
        return
    sizes = dict(breakdown.sizes)
    for name in dimensions:
        begin = sizes[name]
        assert isinstance(begin, int), "only whole numbers are looked for"

        def measure(size: int, name: str = name) -> int:
            """Predict the peak at a size, and say so while it lasts."""
            tell(f"predicting {name}={size}")
            peak: int = survey.peak(name, size)
            return peak

        search = FitSearch(measure, order.budget, {begin: breakdown.peak})
        yield search.largest(name, begin)


@contextmanager
def telling() -> Iterator[Callable[[str], None]]:
    """Show on a terminal what is going on while the block lasts; yields what says so."""
    now = ["beginning"]

    def tell(text: str) -> None:
        """Say what is going on from here on."""
        now[0] = text

    with showing(lambda seconds: f"{now[0]}, {seconds:.0f} s"):
        yield tell


def _write(order: MemoryRequest, account: MemoryReport, survey: Any) -> bool:
    """Write the files that are asked for; say of each that could not be, and whether all were."""
    makers: dict[str, Callable[[], str | bytes]] = {
        "json": lambda: document(account),
        "html": lambda: page(account),
        "png": lambda: picture(account),
        "snapshot": survey.snapshot,
    }
    whole = True
    for kind, path in order.files.items():
        try:
            write_whole(path, makers[kind]())
        except OSError as error:
            sys.stderr.write(f"{path} could not be written: {error.strerror}.\n")
            whole = False
    return whole


def _report_failure(order: MemoryRequest, fault: SubjectError) -> int:
    """Tell why a step could not be followed, with the traceback of the team's own code."""
    remedy = f"\n{fault.remedy}" if fault.remedy else ""
    sys.stderr.write(f"{order.target} could not be followed: {fault.sentence}.{remedy}\n")
    cause = render_cause(fault)
    sys.stderr.write(f"\n{cause}\n" if cause else "")
    return FAILED
