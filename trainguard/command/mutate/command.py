"""`trainguard mutate`: plant mistakes in a training, one at a time, and see who notices."""

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from tempfile import gettempdir
from time import monotonic
from typing import Annotated, Any, Final

import typer

from trainguard.command.exit import CLEAN, FOUND, INTERRUPTED, USAGE, ending
from trainguard.command.mutate.mistakes.operator import Mutant, mutants, operators
from trainguard.command.mutate.project import Project, find_project
from trainguard.command.mutate.proposal import propose
from trainguard.command.mutate.report import render_survey, survey_as_json, survey_as_page
from trainguard.command.mutate.result import Ledger, Result, Survey, by_turns, result_of
from trainguard.command.mutate.seeds import REPEATS, Outcome, came_to, end_of, is_worse, reseeded
from trainguard.command.mutate.trial import (
    Trial,
    check_judged,
    check_repeats,
    is_same,
    try_guards,
    try_training,
)
from trainguard.command.options import Words, check_file, split_globs
from trainguard.command.output import say, write_file
from trainguard.core.errors import DeclarationError
from trainguard.core.files import check_installed
from trainguard.report.progress import showing

_TIMES: Final = 5  # what a mutant may take of what the training takes as it is, and
_LEAST: Final = 60.0  # seconds, for what another load of the machine costs
_UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3600}


@dataclass(frozen=True, kw_only=True)
class MutateRequest:
    """What the command line asks for."""

    project: Project
    globs: tuple[str, ...] = ()
    budget: float = 600.0
    steps: int | None = None
    jobs: int = 1
    json: Path | None = None
    html: Path | None = None
    fresh: bool = False


@dataclass(kw_only=True)
class Work:
    """What is to be done: the training as it is, its mutants, and what became of them so far."""

    order: MutateRequest
    whole: Trial
    again: Trial
    guards: Trial
    mutants: list[Mutant]
    ledger: Ledger
    until: float
    unread: list[str] = field(default_factory=list)


def mutate_training(
    script: Annotated[
        str | None,
        typer.Argument(help="The script that trains, or with -m its module.", metavar="SCRIPT"),
    ] = None,
    args: Annotated[
        Words, typer.Argument(help="The command line of the script, behind --.", metavar="ARGS")
    ] = None,
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is a module, as for python.")] = False,
    guards: Annotated[
        Words, typer.Option(help="Files or folders of guards and tests.", metavar="PATH")
    ] = None,
    operator: Annotated[
        Words, typer.Option("--operators", help="Plant only these.", metavar="GLOBS")
    ] = None,
    budget: Annotated[str, typer.Option(help="30s, 10m, 2h.", metavar="TIME")] = "10m",
    steps: Annotated[
        int | None, typer.Option(min=1, help="Stop after so many optimizer steps.", metavar="N")
    ] = None,
    jobs: Annotated[int, typer.Option("-n", min=1, help="Run so many at once.", metavar="N")] = 1,
    json: Annotated[Path | None, typer.Option(help="Write it all down.", metavar="FILE")] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write a page, with jinja2.", metavar="FILE")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget what was run before.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="List the operators, and stop.")] = False,
) -> None:
    """
    Plant mistakes in a copy of a training, which guards may notice.

    The same command, interrupted or out of time, goes on where it was. Exits with 0 where each
    mistake is noticed, 1 where some are not or none was run in time, 2 for what cannot be mutated,
    3 where the script fails as it is, 4 where trainguard failed, and 130 after Ctrl-C.
    """
    with ending():
        chosen = split_globs(operator)
        if listed:
            text = "\n".join(f"{made.key:<44}{made.title}" for made in operators(chosen))
            raise typer.Exit(CLEAN if say(text, sys.stdout, sys.stderr) else USAGE)
        if script is None:
            raise DeclarationError("There is no script. Write `trainguard mutate train.py`.")
        operators(chosen)
        if html is not None:
            check_installed("--html", "jinja2")
        order = MutateRequest(
            project=find_project(script, tuple(args or ()), tuple(guards or ()), module=module),
            globs=chosen,
            budget=parse_time(budget),
            steps=steps,
            jobs=jobs,
            json=check_file("--json", json),
            html=check_file("--html", html),
            fresh=fresh,
        )
        raise typer.Exit(mutate(order))


def parse_time(text: str) -> float:
    """Return a time in seconds: `90`, `30s`, `10m`, `2h`; raises DeclarationError."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh]?)\s*", text)
    if found is None or not float(found[1]):
        raise DeclarationError(f"--budget {text!r} is no time. Write 30s, 10m or 2h.")
    return float(found[1]) * _UNITS[found[2]]


def mutate(order: MutateRequest) -> int:
    """Run the training as it is, then its mutants; report, and return the exit code."""
    order.project.check_size()
    work = prepare(order)
    try:
        run_mutants(work)
    except KeyboardInterrupt:
        done = sum(mutant.key in work.ledger.results for mutant in work.mutants)
        told = f"{done} of {len(work.mutants)} mutants were run: the same command goes on."
        say(told, sys.stderr)
        return INTERRUPTED
    survey = summarize(work)
    written = True
    if order.json is not None:
        written = write_file(order.json, lambda: survey_as_json(survey), sys.stderr)
    if order.html is not None:
        written &= write_file(order.html, lambda: survey_as_page(survey), sys.stderr)
    kept = order.json is not None or order.html is not None
    written &= say(render_survey(survey), sys.stdout, sys.stderr) or kept
    return exit_code(survey) or (CLEAN if written else USAGE)


def exit_code(survey: Survey) -> int:
    """Return that of some mistakes that were not noticed, or of which none was tried in time."""
    untried = survey.results and len(survey.of_outcome("left")) == len(survey.results)
    return FOUND if survey.of_outcome("survived") or untried else CLEAN


def prepare(order: MutateRequest) -> Work:
    """Run the training and the guards as they are; raises where nothing can be learned so."""
    until = monotonic() + order.budget
    name = order.project.script
    with showing(lambda seconds: f"the training as it is, {seconds:.0f} s"):
        whole = try_training(order.project, {}, order.steps, order.budget)
        check_judged(name, whole, order.budget)
        again = try_training(order.project, {}, order.steps, order.budget)
        check_repeats(name, whole, again)
        guards = Trial(code=CLEAN)
        if order.project.guards:
            guards = try_guards(order.project, {}, order.budget)
    if order.project.guards and not guards.passed | guards.failed:
        last = "".join(guards.printed.strip().splitlines()[-1:])
        raise DeclarationError(f"--guards: pytest runs nothing there ({last}).")
    unread: list[str] = []
    made = by_turns(_mutants(order, whole, unread))
    if not made:
        raise DeclarationError(f"None of the operators applies to {name} and what it imports.")
    ledger = Ledger(_state(order, whole, guards))
    if order.fresh:
        ledger.file.unlink(missing_ok=True)
        ledger.results.clear()
    return Work(
        order=order,
        whole=whole,
        again=again,
        guards=guards,
        mutants=made,
        ledger=ledger,
        until=until,
        unread=unread,
    )


def run_mutants(work: Work) -> None:
    """Run what was not run yet, while there is time."""
    todo = [mutant for mutant in work.mutants if mutant.key not in work.ledger.results]
    total = len(work.mutants)

    def describe(seconds: float) -> str:
        """Say how far it is, and what survived."""
        results = work.ledger.results.values()
        alive = sum(result.outcome == "survived" for result in results)
        bar = "#" * (20 * len(results) // total)
        return f"[{bar:<20}] {len(results)} of {total} mutants, {alive} survived, {seconds:.0f} s"

    def judge(mutant: Mutant) -> Result | None:
        """Judge a mutant, if there is time."""
        if interrupted:
            raise KeyboardInterrupt
        return judge_mutant(work, mutant) if monotonic() < work.until else None

    with showing(describe), _note_interrupt() as interrupted:
        for result in _map(judge, todo, work.order.jobs):
            if result is not None:
                work.ledger.add(result)


@contextmanager
def _note_interrupt() -> Iterator[list[int]]:
    """Yield a list that Ctrl-C adds to: what is raised while a process forks is ignored there."""
    seen: list[int] = []

    def note(number: int, _frame: object) -> None:
        """Remember it, and stop what is running."""
        seen.append(number)
        raise KeyboardInterrupt

    previous: Any = None
    with suppress(ValueError):  # not in the main thread
        previous = signal.signal(signal.SIGINT, note)
    try:
        yield seen
    finally:
        if previous is not None:
            signal.signal(signal.SIGINT, previous)


def judge_mutant(work: Work, mutant: Mutant) -> Result:
    """Run one mutant under `trainguard run` and the guards, and say what became of it."""
    return judge_trial(work, mutant, try_mutant(work, mutant))


def try_mutant(work: Work, mutant: Mutant) -> Trial:
    """Run one mutant under `trainguard run`."""
    limit = max(_LEAST, _TIMES * work.whole.seconds)
    return try_training(work.order.project, {mutant.path: mutant.text}, work.order.steps, limit)


def judge_trial(work: Work, mutant: Mutant, found: Trial) -> Result:
    """Say what became of a mutant that was run; the guards run now."""
    order, whole, change = work.order, work.whole, {mutant.path: mutant.text}
    if not found.is_judged:
        return result_of(mutant, "crashed")
    run, noted = sorted(found.broken - whole.broken), sorted(found.noted - whole.noted)
    if not run and is_same(whole, work.again, found):
        return result_of(mutant, "equivalent")
    failed: list[str] = []
    if order.project.guards:
        limit = max(_LEAST, _TIMES * work.guards.seconds)
        failed = sorted(try_guards(order.project, change, limit).failed & work.guards.passed)
    told = {"run": tuple(run), "noted": tuple(noted), "guards": tuple(failed)}
    if run or failed:
        return result_of(mutant, "killed", **told)
    proposal = propose(order.project, mutant, whole, found)
    return result_of(
        mutant, "survived", **told, proposal=proposal, end=end_of(mutant, whole, found)
    )


def try_seeds(work: Work) -> list[Outcome]:
    """Return what the training comes to from several seeds; nothing without time, or with none."""
    order, whole = work.order, work.whole
    if monotonic() + REPEATS * whole.seconds > work.until:
        return []
    text = (order.project.root / order.project.script).read_bytes()
    limit = max(_LEAST, _TIMES * whole.seconds)
    with showing(lambda seconds: f"the training from other seeds, {seconds:.0f} s"):
        others = [
            try_training(order.project, {order.project.script: other}, order.steps, limit)
            for other in reseeded(text)
        ]
    ends = [came_to(trial) for trial in (whole, *others) if trial.is_judged]
    return ends if len(ends) > REPEATS and any(end != ends[0] for end in ends) else []


def summarize(work: Work) -> Survey:
    """Return what became of all mutants."""
    kept = work.ledger.results
    results = tuple(kept.get(mutant.key) or result_of(mutant, "left") for mutant in work.mutants)
    ended = {r.key: r.end for r in results if r.outcome == "survived" and r.end is not None}
    seeds = try_seeds(work) if ended else []
    return Survey(
        script=work.order.project.script,
        results=results,
        seconds=work.whole.seconds,
        broken=tuple(sorted(work.whole.broken)),
        failing=tuple(sorted(work.guards.failed)),
        guards=len(work.guards.passed),
        applied=len({result.operator for result in results}),
        of=len(operators(work.order.globs)),
        unread=tuple(work.unread),
        compared=tuple(ended) if seeds else (),
        harmless=tuple(key for key, end in ended.items() if seeds and not is_worse(end, seeds)),
    )


def _mutants(order: MutateRequest, whole: Trial, unread: list[str]) -> list[Mutant]:
    """Return the mutants of the script and of the modules of the project that it imports."""
    chosen, made = operators(order.globs), list[Mutant]()
    own = [order.project.script, *(m for m in whole.modules if m != order.project.script)]
    for path in own:
        if path.endswith(".py"):
            data = (order.project.root / path).read_bytes()
            made += mutants(data, path, chosen, unread)
    return made


def _state(order: MutateRequest, whole: Trial, guards: Trial) -> Path:
    """Return where the results are kept: under what they depend on, losses included."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = cache if os.access(cache, os.W_OK) else Path(gettempdir())
    judged = version("trainguard"), sorted(whole.broken), sorted(guards.passed)
    name = order.project.fingerprint(order.steps, whole.losses, judged)
    return home / "trainguard" / "mutate" / f"{name}.jsonl"


def _map(
    judge: Callable[[Mutant], Result | None], todo: Sequence[Mutant], jobs: int
) -> Iterator[Result | None]:
    """Yield what becomes of each, as soon as it is known."""
    if jobs == 1:
        yield from map(judge, todo)
        return
    with ThreadPoolExecutor(jobs) as pool:
        try:
            yield from pool.map(judge, todo)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
