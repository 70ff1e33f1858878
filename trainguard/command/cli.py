"""The command line: run a script and judge it; what is judged, and what each judgement means."""

import importlib.metadata
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
from trainguard.command.exit import ending, seconds
from trainguard.command.explain import explain, list_invariants, print_schema
from trainguard.command.init import write_guards
from trainguard.command.join import join_traces
from trainguard.command.memory.command import show_memory
from trainguard.command.mutate.command import mutate_training
from trainguard.command.options import (
    AllowOption,
    BaselineOption,
    FallsOption,
    FormatOption,
    IgnoreOption,
    JsonOption,
    SelectOption,
    StrictOption,
    UpdateOption,
    Words,
    check_file,
    read_excuses,
    read_settings,
    split_formats,
    split_globs,
)
from trainguard.command.ranks import world
from trainguard.command.run import check_script, launch
from trainguard.command.run_request import RunRequest
from trainguard.command.torchrun import settle, start_ranks, told_command
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
        Words,
        typer.Argument(
            help="The command line of the script, its options included.", metavar="ARGS"
        ),
    ] = None,
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is a module, as for python.")] = False,
    steps: Annotated[
        int | None, typer.Option(help="Stop after so many optimizer steps.", metavar="N")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(help="Stop after so many seconds.", metavar="SECONDS")
    ] = None,
    json: JsonOption = None,
    trace: Annotated[
        Path | None,
        typer.Option(help="Write what was recorded, to judge it again.", metavar="FILE"),
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
    select: SelectOption = None,
    ignore: IgnoreOption = None,
    allow: AllowOption = None,
    strict: StrictOption = False,
    baseline: BaselineOption = None,
    update_baseline: UpdateOption = False,
    no_probes: Annotated[
        bool, typer.Option("--no-probes", help="Only watch: try nothing out.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Name what had nothing to judge, and why.")
    ] = False,
    what_if: Annotated[
        bool, typer.Option("--what-if", help="Try out the first steps, on the CPU; then stop.")
    ] = False,
    batch: Annotated[
        int | None, typer.Option(help="Fail unless each step has so many samples.", metavar="N")
    ] = None,
    falls: FallsOption = None,
    average: Annotated[
        float | None, typer.Option(help="Fail unless the averaged copy has it.", metavar="DECAY")
    ] = None,
    frozen: Annotated[
        Words, typer.Option(help="Fail if parameters of these names move.", metavar="GLOBS")
    ] = None,
    trainable: Annotated[
        Words, typer.Option(help="Fail if parameters of these names stay.", metavar="GLOBS")
    ] = None,
    ranks: Annotated[
        int | None, typer.Option(help="Run so many processes, as torchrun does.", metavar="N")
    ] = None,
    record_only: Annotated[bool, typer.Option("--record-only", hidden=True)] = False,
    components: Annotated[bool, typer.Option("--components", hidden=True)] = False,
) -> None:
    """
    Run a training script as it is, and report what is wrong.

    Exits with 0 where nothing is found, 1 with findings, 2 where there was nothing to judge, 3
    where the script failed, 4 where trainguard did, and 130 after Ctrl-C.
    """
    with ending():
        if what_if and no_probes:
            raise DeclarationError("--what-if asks, and --no-probes asks nothing: leave one out.")
        subject = Script(
            script,
            module=module,
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
            check_script(order)
            raise typer.Exit(start_ranks(ranks, sys.argv[1:]))
        raise typer.Exit(settle(launch(order)))


@app.command("compare")
def compare_sides(
    a: Annotated[
        str,
        typer.Argument(
            help="A script with arguments (a module: 'python -m NAME'), file.py::loop, trace or"
            " log.",
            metavar="A",
        ),
    ],
    b: Annotated[
        str, typer.Argument(help="The same, of what is meant to be no worse.", metavar="B")
    ],
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
    Compare two trainings: loss, time of a step and memory.

    They are run in pairs. Each pair has a seed of its own: loops are run under it, and {seed} in
    the arguments of a script stands for it. Exits with 0, with 1 where B is surely worse than a
    stated margin, 2 for what cannot be compared, 3 where a side failed, 4 where trainguard did, and
    130 after Ctrl-C.
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
app.command("judge", hidden=True)(diagnose_logs)  # what a trace of a killed run is given to
app.command("mutate")(mutate_training)
app.command("schema")(print_schema)
app.command("list")(list_invariants)
app.command("explain")(explain)
