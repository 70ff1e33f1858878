"""`trainguard run`: a script under the recorder, its report, and its files."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn, TextIO

from trainguard.command import ranks
from trainguard.command.exit import (
    CLEAN,
    FAILED,
    FOUND,
    INTERRUPTED,
    OURS,
    USAGE,
    account_for_exits,
    end_in_order,
    leave_child,
    name_port,
    report_error,
)
from trainguard.command.live import LiveAccount
from trainguard.command.options import SILENCE, name_only
from trainguard.command.output import (
    Audience,
    flush,
    give_way,
    keep_stream,
    say,
    write_baseline,
    write_file,
)
from trainguard.command.ranks import own_file, rank
from trainguard.command.run_request import RunRequest
from trainguard.command.together import (
    choose_trace,
    judge_others,
    judge_threads,
    ranks_as_rows,
    reports_of,
    threads_as_rows,
)
from trainguard.command.torchrun import settle
from trainguard.core.catalogue import catalogue
from trainguard.core.errors import DeclarationError, SubjectError, is_ours
from trainguard.events.trace import Trace
from trainguard.judging.judge import applicable, check_excuses_apply, check_steps
from trainguard.judging.live import LiveJudge
from trainguard.judging.verdict import Verdict
from trainguard.report import run_summary
from trainguard.report.formats import RunAccount
from trainguard.report.json import check_apart, document, render
from trainguard.report.progress import progress
from trainguard.report.run_report import baseline_as_rows, render_report
from trainguard.report.text import render_crash

_NO_ACCELERATOR: Final = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
_EXCEPTHOOK: Final = sys.excepthook  # before the command line puts its own there


def launch(order: RunRequest) -> int:
    """
    Run what was ordered, judge it, report it, and return the exit code.

    Raises DeclarationError, before anything is run, for what cannot be meant.
    """
    name_only(order.subject)
    sys.excepthook = _EXCEPTHOOK
    known = order.baseline.path
    files = [order.json, order.trace, order.events, known, *(file for _, file in order.formats)]
    check_apart(files, [None if order.subject.module else Path(order.subject.path)])
    if order.judging:
        _check_judgeable(order)
        ranks.enter()
    elif ranks.world() > 1:
        _end_with_launcher()
    with keep_stream(sys.stdout) as out, keep_stream(sys.stderr) as err:
        try:
            program = _find_program(order)
        except DeclarationError:
            raise
        except BaseException as error:  # noqa: BLE001 a package on the way to the module failed
            return report_error(error, err)
        live = _live_account(order, err)
        give_way(order.formats)
        end = partial(_end_waiting, order, live, out, err)
        recorder, spawned, failure = _record(order, program, live, end)
        flush()
        code = CLEAN if failure is None else report_error(failure, err)
        if taken := name_port(failure):
            say(taken, err)
        # From here on the work is done: torchrun, say, may not cut off the account of it.
        with _ignore_termination():
            if order.judging:
                ranks.enter()  # a script under srun has said by now which of several it is
            order, *traces = choose_trace(order, recorder, spawned)
            return _judge_and_report(order, traces, spawned, code, live, out, err)


def check_script(order: RunRequest) -> None:
    """Raise DeclarationError for a script that is none, before processes are made for it."""
    if not order.subject.module:
        _find_program(order)


def _end_with_launcher() -> None:
    """End when the launcher does: who has declared this run ends that where it takes too long."""
    from trainguard.observe.tools.child_process import end_with  # late: torch

    end_with(os.getppid())


@contextmanager
def _ignore_termination() -> Iterator[None]:
    """Let nobody end the process inside a block; afterwards a thread may keep it going for long."""
    previous: Any = None
    with suppress(ValueError):  # not in the main thread
        previous = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        yield
    finally:
        if previous is not None:
            ours = ranks.world() > 1 and previous == signal.SIG_IGN
            signal.signal(signal.SIGTERM, signal.SIG_DFL if ours else previous)


def _check_judgeable(order: RunRequest) -> None:
    """Raise where excuses or settings leave nothing that a single run can be judged by."""
    if order.fail_fast and order.baseline.writes:
        raise DeclarationError(
            "--fail-fast stops before a baseline is whole. Write it by a run without."
        )
    check_excuses_apply(order.subject, ())
    again = {made.name for made in catalogue("loop") if made.probe != "run"}
    for name in again & set(order.subject.allow):
        raise DeclarationError(f"--allow {name} excuses what `trainguard run` does not judge.")
    if not [m for m, _ in applicable(order.subject, order.settings, ()) if m.probe == "run"]:
        raise DeclarationError(
            f"select={order.settings.select!r} and ignore={order.settings.ignore!r} leave no"
            " invariant of the family loop. `trainguard list 'loop.*'` shows them all."
        )


def _find_program(order: RunRequest) -> Any:
    """Find and compile the script or module."""
    from trainguard.observe.loop.run_script import find_module, find_script  # late: torch

    find = find_module if order.subject.module else find_script
    return find(str(order.subject.path), order.subject.args)


def _live_account(order: RunRequest, err: TextIO) -> LiveAccount:
    """Return what is told while the script runs, as far as that was asked for."""
    events, trace = (own_file(f) if f is not None else None for f in (order.events, order.trace))
    judge = LiveJudge(order.subject, order.settings, order.command, SILENCE, order.baseline.hold)
    return LiveAccount(judge, err, order.live, order.fail_fast, events, trace)


def _record(
    order: RunRequest, program: Any, live: LiveAccount, end: Callable[..., NoReturn]
) -> tuple[Any, Any, BaseException | None]:
    """
    Run a program under the recorder; return it, what it has spawned, and what it raised.

    end: called where it waits for other processes when its time is over.
    A child that the program forked comes this way too. It undoes nothing and reports nothing:
    it ends as it would have ended without us.
    """
    from trainguard.observe.loop.counterfactual.asking import Counterfactuals  # late, for torch
    from trainguard.observe.loop.live_looks import LiveLooks
    from trainguard.observe.loop.recorder import Recorder
    from trainguard.observe.loop.run_script import execute, time_limit
    from trainguard.observe.loop.spawned import SpawnedProcesses
    from trainguard.observe.loop.stopped import Stopped
    from trainguard.observe.loop.waiting import failed_at, stand_at, watch_waiting

    run, owner = order.subject, os.getpid()
    raised: Any = None
    options: dict[str, Any] = {"steps": run.steps, "probe": run.probe, "promises": run.promises}
    thorough = order.settings.profile == "thorough"
    recorder = Recorder(run.name, components=order.components, thorough=thorough, **options)
    recorder.thread.splits = True
    spawned = SpawnedProcesses(run.name, options)
    if live.is_wanted:
        recorder.live = LiveLooks(live.look, live.wants_look)
    if order.what_if:
        os.environ.update(_NO_ACCELERATOR)
        recorder.watcher(Counterfactuals).wait()
    try:
        with ExitStack() as stack:
            stack.enter_context(progress(lambda: recorder.steps, run.steps))
            stack.enter_context(spawned)
            stack.enter_context(recorder)
            spawned.listen(recorder)
            account_for_exits(run.name, recorder.patches.replace)
            told = partial(end, recorder, spawned), ranks.stand
            several = ranks.world() > 1 and order.judging
            stack.enter_context(watch_waiting(order.timeout, *told) if several else nullcontext())
            stack.enter_context(time_limit(order.timeout, Stopped))
            try:
                with end_in_order():
                    execute(program)
                    recorder.thread.wait()
            except BaseException as error:
                raised = error
                raise
            finally:
                if os.getpid() != owner:
                    if recorder.leave is not None:
                        recorder.leave(raised)
                    stack.pop_all()
    except BaseException as error:
        if error is not raised or is_ours(error):
            raise
        stood = failed_at(raised) if ranks.world() > 1 else ""
        recorder.trace = stand_at(recorder.trace, stood)
    else:
        recorder.trace = stand_at(recorder.trace, getattr(raised, "place", ""))
        raised = None  # the recorder's own stop
    if os.getpid() != owner:
        leave_child(raised)
    return recorder, spawned, raised


def _end_waiting(
    order: RunRequest,
    live: LiveAccount,
    out: TextIO,
    err: TextIO,
    recorder: Any,
    spawned: Any,
    place: str,
) -> NoReturn:
    """Report what was recorded until this process began to wait for others, and end it."""
    from trainguard.observe.loop.waiting import end_recording  # late, for torch

    end_recording(recorder, place)
    order, *traces = choose_trace(order, recorder, spawned)
    code = _judge_and_report(order, traces, spawned, CLEAN, live, out, err)
    flush()
    os._exit(settle(code))


def _judge_and_report(
    order: RunRequest,
    traces: list[Trace[Any]],
    spawned: Any,
    code: int,
    live: LiveAccount,
    out: TextIO,
    err: TextIO,
) -> int:
    """Judge what was recorded, write the files, print the report, and return the exit code."""
    ended, trace = "interrupted" if code == INTERRUPTED else "", traces[0]
    held, speaks = order.baseline, ranks.speaks()
    missing, verdicts, others = "", tuple[Verdict, ...](), ranks.Others()
    try:
        check_steps(order.subject, trace)
    except SubjectError as fault:
        missing = f"{fault.sentence}.\n{fault.remedy}"
    if order.judging and not missing:
        verdicts = tuple(map(held.hold, live.judge.merge(judge_threads(order, traces))))
    if order.judging:
        verdicts, others = judge_others(
            order, trace, spawned, verdicts, failed=bool(code), speaks=speaks
        )
        speaks &= not others.handed
    partly = missing or code or others.missing or not speaks or live.as_rows()
    whole = order.judging and not partly
    verdicts = _settle(order, verdicts, whole, err)
    told, found = run_summary.summarize_run(trace, ended), reports_of(verdicts)
    every = {rank(): found, **others.found}
    elsewhere = tuple(ranks.found_by_others(every, rank()))
    written = not whole or write_baseline(held, err)
    if order.json is not None:
        plain = document(order.subject, verdicts, told, elsewhere)
        written &= write_file(own_file(order.json, speaks=speaks), partial(render, plain), err)
    if order.trace is not None:
        written &= write_file(own_file(order.trace), trace.to_text, err)
    live.write_rest(verdicts, told.steps)
    if missing:
        return _end_unjudged(order, missing, code, err)
    if order.judging and speaks:
        size = spawned.count if spawned.traces else ranks.world()
        rows = run_summary.as_rows(told) + threads_as_rows(traces)
        rows += ranks_as_rows(others, size, trace)
        rows += run_summary.questions_as_rows(trace) if order.verbose else []
        rows += live.as_rows() + (baseline_as_rows(held) if whole else [])
        head = run_summary.headline(told, order.subject.name)
        text = render_report(
            verdicts,
            head,
            rows,
            strict=order.settings.strict,
            by_name=order.verbose,
            others=ranks.render_others(every, rank()),
        )
        account = RunAccount(
            subject=order.subject,
            verdicts=verdicts,
            told=told,
            trace=trace,
            text=f"\n{text}",  # the script may have left its last line open
            root=order.root,
            others=elsewhere,
        )
        told_to = Audience(order.formats, out, err, files=order.json is not None)
        written &= told_to.tell([account])
    # Nothing where others go on, whom a launcher would then end.
    everything = ranks.leave(found) if order.judging else {}
    new = {n: f for n, f in everything.items() if n not in others.found}
    late = [ranks.render_others(new, rank() if speaks else 0), ranks.miss_the_first(everything)]
    if any(late):
        say("\n\n".join(filter(None, late)), err)
    each = [*everything.values(), *others.found.values()]
    waits = any(own.conditions.get("waits") for own in (trace, *others.digests.values()))
    usual = FAILED if waits and speaks else CLEAN if written else USAGE
    code = code or _tell_crashes(verdicts, err)
    return code or (FOUND if everything and any(each) else usual)


def _tell_crashes(verdicts: tuple[Verdict, ...], err: TextIO) -> int:
    """Lay out the first judgement that failed itself, and return the exit code for that."""
    crashed = next((one for one in verdicts if one.crash is not None), None)
    if crashed is None or crashed.crash is None:
        return CLEAN
    say("\n" + render_crash(crashed.crash, crashed.invariant), err)
    return OURS


def _end_unjudged(order: RunRequest, missing: str, code: int, err: TextIO) -> int:
    """Say why nothing can be judged, and let the other processes know that this one is over."""
    if not code:
        say(missing, err)
    if order.judging:
        ranks.leave({})
    return code or USAGE


def _settle(
    order: RunRequest, verdicts: tuple[Verdict, ...], whole: bool, err: TextIO
) -> tuple[Verdict, ...]:
    """Hold what a whole run came to against the baseline: of another, nothing is mended."""
    if whole:
        return tuple(map(order.baseline.settle, verdicts))
    if order.baseline.writes and order.judging and not rank():
        say(f"{order.baseline.name} was not written: the run is not whole.", err)
    return verdicts
