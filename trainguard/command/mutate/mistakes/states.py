"""Mistakes with modes, averaged copies, and what is written down to go on from."""

import ast
from collections.abc import Iterator

from trainguard.command.mutate.mistakes.operator import mistake
from trainguard.command.mutate.mistakes.source import Edit, SourceFile, keyword, name_of, words_in

_AVERAGES = (
    "get_ema_multi_avg_fn",
    "get_ema_avg_fn",
    "EMA",
    "ModelEMA",
    "ExponentialMovingAverage",
)
_DECAYS = ("decay", "ema_decay", "beta", "momentum")


@mistake
def eval_dropped(source: SourceFile) -> Iterator[Edit]:
    """
    The model is evaluated with dropout and with the statistics of the batch.

    Source: rsommerfeld/trocr issue 9; pliang279/MultiBench issue 26.
    """
    for statement in source.statements("eval"):
        if isinstance(statement, ast.Expr):
            yield source.drop(statement)


@mistake
def train_dropped(source: SourceFile) -> Iterator[Edit]:
    """
    After its first evaluation the model is trained in evaluation mode.

    Source: joeynmt/joeynmt issue 184; tk-rusch/coRNN issue 1.
    """
    for statement in source.statements("train"):
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            call = statement.value
            if isinstance(call.func, ast.Attribute) and not call.args and not call.keywords:
                yield source.drop(statement)


@mistake
def decay_of_average_exchanged(source: SourceFile) -> Iterator[Edit]:
    """
    An average follows by what it was meant to keep: it is the model of the last step.

    Source: huggingface/diffusers issue 1864 and pull request 1868.
    """
    for node in _decays(source):
        yield source.replace(node, f"1 - ({source.segment(node)})")


@mistake
def average_without_buffers(source: SourceFile) -> Iterator[Edit]:
    """
    An average has parameters of now and batch statistics of the beginning.

    Source: CuriousAI/mean-teacher issue 9; pytorch/pytorch issue 84053.
    """
    for call in source.calls("AveragedModel"):
        yield from source.drop_keyword(call, "use_buffers")
    for statement in source.nodes:
        if isinstance(statement, ast.For) and "buffers" in words_in(statement.iter):
            yield source.drop(statement)


@mistake
def checkpoint_without_optimizer(source: SourceFile) -> Iterator[Edit]:
    """
    A resumed run begins with an optimizer that knows nothing.

    Source: ultralytics/yolov5 issue 292; YehLi/xmodaler issue 15.
    """
    yield from _without_state(source, "opt")


@mistake
def checkpoint_without_scheduler(source: SourceFile) -> Iterator[Edit]:
    """
    A resumed run begins its schedule again.

    Source: lightly-ai/lightly-train pull request 301; huggingface/pytorch-image-models issue 871.
    """
    yield from _without_state(source, "sched")


@mistake
def checkpoint_without_random_state(source: SourceFile) -> Iterator[Edit]:
    """
    A resumed run draws the random numbers of its beginning once more.

    Source: huggingface/transformers issue 17032.
    """
    for call in source.calls("set_rng_state", "setstate", "set_rng_state_all"):
        yield source.drop(source.statement(call))


def _decays(source: SourceFile) -> Iterator[ast.expr]:
    """Yield the decays of averages: of torch's own, of `lerp_`, and of functions of that name."""
    for call in source.calls(*_AVERAGES):
        decay = keyword(call, "decay") or next(
            (a for a in call.args if isinstance(a, ast.Constant) or "decay" in words_in(a)), None
        )
        if decay is not None:
            yield decay
    for call in source.calls("lerp_"):
        yield from call.args[1:2]
    for node in source.nodes:
        if isinstance(node, ast.Call) and name_of(node) not in _AVERAGES:
            named = any(word in name_of(node).lower() for word in ("ema", "average"))
            yield from (k.value for k in node.keywords if named and k.arg in _DECAYS)


def _without_state(source: SourceFile, word: str) -> Iterator[Edit]:
    """Yield edits after which a state is neither loaded nor missed, of what has a name."""
    for call in source.calls("load_state_dict"):
        statement = source.statement(call)
        if isinstance(statement, ast.Expr) and word in words_in(call.func):
            yield source.drop(statement)
