"""The command line: run a script and judge it; what is judged, and what each judgement means."""

import importlib.metadata
import inspect
import math
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from trainguard.command.compare.command import CompareRequest, compare
from trainguard.command.compare.interval import margin
from trainguard.command.compare.side import side
from trainguard.command.diagnose import diagnose_logs
from trainguard.command.exit import USAGE, ending, seconds
from trainguard.command.init import write_guards
from trainguard.command.join import join_traces
from trainguard.command.memory.command import show_memory
from trainguard.command.mutate.command import mutate_training
from trainguard.command.options import (
    FormatOption,
    Words,
    check_file,
    complete_name,
    read_excuses,
    read_settings,
    split_formats,
    split_globs,
)
from trainguard.command.output import say
from trainguard.command.ranks import world
from trainguard.command.run import launch
from trainguard.command.run_request import RunRequest
from trainguard.command.schema import print_schema
from trainguard.command.torchrun import settle, start_ranks, told_command
from trainguard.core.catalogue import (
    Invariant,
    catalogue,
    check_globs,
    find_invariants,
    has_limit,
    matches,
)
from trainguard.core.errors import DeclarationError
from trainguard.judging.baseline import open_baseline
from trainguard.subjects.loop import Script

app = typer.Typer(
    name="trainguard",
    help="Judge training: a script (trainguard run), declared parts of it (pytest --trainguard).",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
_ASKED = 13  # steps of --what-if: after 1, 2, 5 and 12 of them it is asked


@app.callback(invoke_without_command=True)
def main(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Judge training: a script (trainguard run), declared parts of it (pytest --trainguard)."""
    if version:
        typer.echo(f"trainguard {importlib.metadata.version('trainguard')}")
        raise typer.Exit


# Options end at SCRIPT: what stands behind it is its own, --help included.
@app.command("run", context_settings={"allow_interspersed_args": False})
def run_script(
    script: Annotated[
        str, typer.Argument(help="The script, or with -m the module.", metavar="SCRIPT")
    ],
    args: Annotated[
        Words, typer.Argument(help="Its own command line, options included.", metavar="ARGS")
    ] = None,
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is a module, as for python.")] = False,
    steps: Annotated[
        int | None, typer.Option(help="Stop after so many optimizer steps.", metavar="N")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(help="Stop after so many seconds.", metavar="SECONDS")
    ] = None,
    json: Annotated[
        Path | None, typer.Option(help="Write the findings to this file.", metavar="FILE")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Write all that was recorded.", metavar="FILE")
    ] = None,
    format: FormatOption = None,  # noqa: A002 it is the name of the option
    live: Annotated[
        bool, typer.Option("--live", help="Print a finding as soon as it is certain.")
    ] = False,
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast", help="Stop the script at the first that is certain.")
    ] = False,
    events: Annotated[
        Path | None, typer.Option(help="Append a line of JSON for each finding.", metavar="FILE")
    ] = None,
    select: Annotated[Words, typer.Option(help="Judge only these.", metavar="GLOBS")] = None,
    ignore: Annotated[Words, typer.Option(help="Judge all but these.", metavar="GLOBS")] = None,
    allow: Annotated[
        Words, typer.Option(help="Excuse one; a stale excuse fails.", metavar="NAME=REASON")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Let notes fail too.")] = False,
    baseline: Annotated[
        Path | None, typer.Option(help="Fail only for what is not in it.", metavar="FILE")
    ] = None,
    update_baseline: Annotated[
        bool, typer.Option("--update-baseline", help="Write it anew, with what is found.")
    ] = False,
    no_probes: Annotated[
        bool, typer.Option("--no-probes", help="Only watch, try nothing out.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print what steps were asked, and the answers.")
    ] = False,
    what_if: Annotated[
        bool, typer.Option("--what-if", help="Ask the first steps, on the CPU; then stop.")
    ] = False,
    batch: Annotated[
        int | None, typer.Option(help="Promise: samples in each step.", metavar="N")
    ] = None,
    falls: Annotated[
        float | None, typer.Option(help="Promise: the share the loss falls by.", metavar="SHARE")
    ] = None,
    average: Annotated[
        float | None, typer.Option(help="Promise: the decay of the averaged copy.", metavar="DECAY")
    ] = None,
    frozen: Annotated[
        Words, typer.Option(help="Promise: parameters that stay.", metavar="GLOBS")
    ] = None,
    trainable: Annotated[
        Words, typer.Option(help="Promise: parameters that move.", metavar="GLOBS")
    ] = None,
    ranks: Annotated[
        int | None, typer.Option(help="Run so many processes, as torchrun does.", metavar="N")
    ] = None,
    record_only: Annotated[bool, typer.Option("--record-only", hidden=True)] = False,
    components: Annotated[bool, typer.Option("--components", hidden=True)] = False,
) -> None:
    """
    Run a script under the recorder, unchanged, and judge the training that it does.

    Exits with 0 where nothing is found, 1 with findings, 2 where there was nothing to judge, 3
    where the script failed, 4 where trainguard did, and 130 after Ctrl-C.
    """
    with ending():
        if what_if and no_probes:
            raise DeclarationError("--what-if asks, and --no-probes asks nothing: leave one out.")
        subject = Script(
            script,
            args=tuple(args or ()),
            name=script if module else Path(script).name,
            allow=read_excuses(allow),
            probe=not no_probes,
            ranks=ranks or world(),
            steps=_ASKED if what_if and steps is None else steps,
            batch=batch,
            falls=falls,
            average=average,
            frozen=split_globs(frozen),
            trainable=split_globs(trainable),
        )
        order = RunRequest(
            subject=subject,
            module=module,
            settings=read_settings(select, ignore, strict, read=not record_only),
            timeout=seconds(timeout),
            json=check_file("--json", json),
            trace=check_file("--trace", trace),
            command=shlex.join(told_command(sys.argv[1:])),
            judging=not record_only,
            components=components,
            verbose=verbose or what_if,
            what_if=what_if,
            formats=split_formats(format),
            live=live,
            fail_fast=fail_fast,
            events=check_file("--events", events),
            baseline=open_baseline(baseline, update_baseline),
        )
        if ranks is not None:
            raise typer.Exit(start_ranks(ranks, sys.argv[1:]))
        raise typer.Exit(settle(launch(order)))


@app.command("compare")
def compare_sides(
    a: Annotated[str, typer.Argument(help="A script with arguments, file.py::loop, trace or log.")],
    b: Annotated[str, typer.Argument(help="The same, of what is meant to be no worse.")],
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Run each so often, in turns: 5.", metavar="N")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Stop after so many optimizer steps.", metavar="N")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds that one run may take.", metavar="SECONDS")
    ] = None,
    loss_margin: Annotated[
        str | None, typer.Option(help="Fail where B's loss is worse: 2%, 0.05.", metavar="MARGIN")
    ] = None,
    time_margin: Annotated[
        str | None, typer.Option(help="The same of its steps: 10%, '3 ms'.", metavar="MARGIN")
    ] = None,
    memory_margin: Annotated[
        str | None, typer.Option(help="The same of its peak: 5%, '20 MiB'.", metavar="MARGIN")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Write it all down.", metavar="FILE")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw a picture (PNG).", metavar="FILE")] = None,
) -> None:
    """
    Compare two trainings: loss, seconds per step and memory, over pairs of runs.

    Each pair has a seed of its own: loops are run under it, and {seed} in the arguments of a script
    stands for it. Exits with 0, with 1 where B is surely worse than a stated margin, 2 for what
    cannot be compared, 3 where a side failed, 4 where trainguard did, and 130 after Ctrl-C.
    """
    given = {"loss": loss_margin, "time": time_margin, "memory": memory_margin}
    with ending():
        contest = CompareRequest(
            a=side(a),
            b=side(b),
            repeats=repeats,
            steps=steps,
            seconds=seconds(timeout) or math.inf,
            margins={name: margin(name, text) for name, text in given.items() if text is not None},
            json=check_file("--json", json),
            plot=check_file("--plot", plot),
        )
        raise typer.Exit(compare(contest, sys.stdout, sys.stderr))


app.command("init", context_settings={"allow_interspersed_args": False})(write_guards)
app.command("memory")(show_memory)
app.command("join")(join_traces)
app.command("diagnose")(diagnose_logs)
app.command("mutate")(mutate_training)
app.command("schema")(print_schema)


@app.command("list")
def list_invariants(
    globs: Annotated[
        list[str] | None, typer.Argument(help="Such as 'loss.*'; all if none.")
    ] = None,
) -> None:
    """List the invariants: what holds when all is well, and which promise each needs."""
    chosen = globs or ["*"]
    with ending():
        check_globs("GLOB", chosen)
        shown = [made for made in catalogue() if matches(made, chosen)]
        width = max(len(made.key) for made in shown)
        _tell("\n".join(f"{made.key:<{width}}  {made.title}{_needs(made)}" for made in shown))


@app.command()
def explain(
    name: Annotated[
        str,
        typer.Argument(help="Such as gradient_is_finite.", autocompletion=complete_name),
    ],
) -> None:
    """Explain an invariant: what it judges, allows and misses, and why it is there."""
    with ending():
        _tell("\n\n".join(_explain(made) for made in find_invariants(name)))


def _tell(text: str) -> None:
    """Print what was asked for; where it does not arrive, that is a failure."""
    if not say(text, sys.stdout, sys.stderr):
        raise typer.Exit(USAGE)


def _explain(made: Invariant) -> str:
    """Lay out all that is known of an invariant."""
    needs = ", ".join(sorted(made.needs)) or "nothing promised"
    run = made.family == "loop" and made.probe == "run"
    return "\n".join(
        [
            made.key,
            "",
            *(f"  {line}".rstrip() for line in (inspect.getdoc(made.judge) or "").splitlines()),
            "",
            f"  Needs: {needs}. Judged once per {made.per}, from the probe `{made.probe}`.",
            f'  Excuse: allow={{"{made.name}": "<reason>"}}.',
            *([f'  Limit: limits={{"{made.name}": <number>}}.'] * has_limit(made)),
            f"  Leave out: --trainguard-ignore={made.key}.",
            *([f"  In `trainguard run`: --allow {made.name}=REASON, --ignore {made.key}."] * run),
        ]
    )


def _needs(made: Invariant) -> str:
    """Say which promises switch an invariant on, or nothing where none is needed."""
    return f" [needs {', '.join(sorted(made.needs))}]" if made.needs else ""
