"""Mistakes with learning rates, schedules, and the other settings of an optimizer."""

import ast
from collections.abc import Iterator

from trainguard.command.mutate.mistakes.operator import mistake
from trainguard.command.mutate.mistakes.source import (
    LOOPS,
    Edit,
    SourceFile,
    keyword,
    name_of,
    receiver,
    words_in,
)

_OPTIMIZERS = (
    *("SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop"),
    *("SparseAdam", "Rprop", "LBFGS", "Muon", "Adafactor"),
)
_HORIZONS = ("T_max", "num_training_steps", "total_steps")
_WARMUPS = ("warmup", "warmup_steps", "num_warmup_steps", "warmup_iters", "warmup_epochs")
_SCHEDULERS = ("sched", "warmup", "plateau")
_ENDLESS = 1000  # times the warm-up: no run gets to its end


def optimizers(source: SourceFile) -> Iterator[ast.Call]:
    """Yield the calls that make an optimizer."""
    yield from source.calls(*_OPTIMIZERS)


@mistake
def rate_times_10(source: SourceFile) -> Iterator[Edit]:
    """
    The learning rate is ten times too large: a zero is missing.

    Source: kermitt2/delft pull request 161; xcmyz/FastSpeech issue 37.
    """
    yield from _rate(source, "10 * ({})")


@mistake
def rate_times_100(source: SourceFile) -> Iterator[Edit]:
    """
    The learning rate is a hundred times too large.

    Source: TheDeepChecker's synthetic programs (high learning rate); NVIDIA-NeMo/Speech issue 7149.
    """
    yield from _rate(source, "100 * ({})")


@mistake
def rate_over_100(source: SourceFile) -> Iterator[Edit]:
    """
    The learning rate is a hundred times too small.

    Source: TheDeepChecker's synthetic programs (low rate); kermitt2/delft pull request 161.
    """
    yield from _rate(source, "({}) / 100")


@mistake
def rate_squared(source: SourceFile) -> Iterator[Edit]:
    """
    A function for LambdaLR returns rates, not factors: the base rate is in them twice.

    Source: lhoyer/MIC issue 60; pytorch/pytorch issue 78917.
    """
    for call in source.calls("LambdaLR"):
        given = keyword(call, "lr_lambda") or next(iter(call.args[1:2]), None)
        owner = keyword(call, "optimizer") or next(iter(call.args), None)
        if given is not None and owner is not None and not isinstance(given, ast.List):
            rate = f'{source.segment(owner)}.defaults["lr"]'
            factor = f"({source.segment(given)})(step)"
            yield source.replace(given, f"lambda step: {rate} * {factor}")


@mistake
def schedule_by_epoch(source: SourceFile) -> Iterator[Edit]:
    """
    A schedule of steps is advanced once an epoch, and gets nowhere.

    Source: Lightning-AI/pytorch-lightning issue 1476; ageron/handson-mlp issue 28.
    """
    for statement in _advances(source):
        loops, block = source.around(statement, *LOOPS), source.block(statement)
        if len(loops) > 1 and statement is block[-1] and source.parents[statement] is loops[0]:
            begin, end = source.span(statement)
            indent = loops[0].col_offset - statement.col_offset  # type: ignore[attr-defined]
            yield Edit(begin + indent, end, source.segment(statement))


@mistake
def schedule_by_step(source: SourceFile) -> Iterator[Edit]:
    """
    A schedule of epochs is advanced with each batch, and is over after an epoch.

    Source: automl/Auto-PyTorch issue 211; starVLA/starVLA pull request 210.
    """
    for statement in _advances(source):
        for loop in source.block(statement):
            steps = [c for c in ast.walk(loop) if isinstance(c, ast.Call) and name_of(c) == "step"]
            if isinstance(loop, LOOPS) and steps and statement not in ast.walk(loop):
                yield source.insert(
                    source.statement(steps[-1]), source.segment(statement), after=True
                )
                break


@mistake
def schedule_never_advanced(source: SourceFile) -> Iterator[Edit]:
    """
    A schedule is made, and never advanced.

    Source: SPOClab-ca/dn3 issue 6 (an added scheduler leaves the rate at its default).
    """
    yield from (source.drop(statement) for statement in _advances(source))


@mistake
def horizon_too_short(source: SourceFile) -> Iterator[Edit]:
    """
    A schedule is over long before the training, or begins again.

    Source: ScrollPrize/villa pull request 1495; ivadomed/ivadomed issue 57.
    """
    for node in _keywords(source, *_HORIZONS):
        yield source.replace(node, f"max(1, int({source.segment(node)}) // 4)")
    for call in source.calls("CosineAnnealingLR"):
        for node in call.args[1:2]:
            yield source.replace(node, f"max(1, int({source.segment(node)}) // 4)")


@mistake
def warmup_without_end(source: SourceFile) -> Iterator[Edit]:
    """
    The warm-up is longer than the run, which never gets to its rate.

    Source: PeterGriffinJin/Search-R1 issue 28 (a warm-up of 95 % of the run).
    """
    for node in _keywords(source, *_WARMUPS):
        yield source.replace(node, f"{_ENDLESS} * ({source.segment(node)})")
    for call in source.calls("LinearLR"):
        iterations = keyword(call, "total_iters")
        if iterations is not None:
            yield source.replace(iterations, f"{_ENDLESS} * ({source.segment(iterations)})")


@mistake
def betas_lost(source: SourceFile) -> Iterator[Edit]:
    """
    The averages of the optimizer are those of its defaults.

    Source: NVIDIA-NeMo/Speech pull request 775; Nerogar/OneTrainer pull request 153.
    """
    for call in optimizers(source):
        yield from source.drop_keyword(call, "betas")
        yield from source.drop_keyword(call, "momentum")


@mistake
def epsilon_large(source: SourceFile) -> Iterator[Edit]:
    """
    The epsilon of the optimizer is as large as its gradients, so that it hardly adapts.

    Source: NVIDIA-NeMo/Speech pull request 775 (it is not handed on); TheDeepChecker's synthetic
    programs, which plant one.
    """
    for call in optimizers(source):
        if name_of(call).startswith(("Adam", "NAdam", "RAdam", "RMSprop")):
            yield source.set_keyword(call, "eps", "0.1")


@mistake
def weight_decay_lost(source: SourceFile) -> Iterator[Edit]:
    """
    Weights do not decay, though they were meant to.

    Source: facebookresearch/BalancingGroups issue 6 (it decays the wrong group, and not the rest).
    """
    for call in optimizers(source):
        decay = keyword(call, "weight_decay")
        if decay is not None and source.segment(decay) not in ("0", "0.0"):
            yield source.replace(decay, "0.0")
    for node in _group_decays(source):
        if source.segment(node) not in ("0", "0.0"):
            yield source.replace(node, "0.0")


@mistake
def weight_decay_everywhere(source: SourceFile) -> Iterator[Edit]:
    """
    Biases and gains of norms decay as weights do.

    Source: mmcdermott/MEDS_EIC_AR issue 30; ServiceNow/Fast-LLM issue 542.
    """
    for node in _group_decays(source):
        if source.segment(node) in ("0", "0.0"):
            yield source.replace(node, "0.1")


def _rate(source: SourceFile, form: str) -> Iterator[Edit]:
    """Yield edits of the rates that optimizers are made with."""
    for call in optimizers(source):
        rate = keyword(call, "lr") or next(iter(call.args[1:2]), None)
        if rate is not None:
            yield source.replace(rate, form.format(source.segment(rate)))


def _advances(source: SourceFile) -> Iterator[ast.stmt]:
    """Yield the statements that advance a scheduler."""
    for call in source.calls("step"):
        owner, statement = receiver(call), source.statement(call)
        named = "" if owner is None else words_in(owner)
        if isinstance(statement, ast.Expr) and any(word in named for word in _SCHEDULERS):
            yield statement


def _keywords(source: SourceFile, *names: str) -> Iterator[ast.expr]:
    """Yield the values of keywords of these names, whatever is called."""
    for node in source.nodes:
        if isinstance(node, ast.keyword) and node.arg in names:
            yield node.value


def _group_decays(source: SourceFile) -> Iterator[ast.expr]:
    """Yield the decays of groups of parameters."""
    for node in source.nodes:
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if key is not None and words_in(key) == "weight_decay":
                    yield value
