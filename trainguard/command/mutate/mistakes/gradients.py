"""Mistakes with gradients: when they are cleared, made, clipped, scaled and used."""

import ast
from collections.abc import Iterator

from trainguard.command.mutate.mistakes.operator import mistake
from trainguard.command.mutate.mistakes.source import (
    LOOPS,
    Edit,
    SourceFile,
    name_of,
    receiver,
    words_in,
)

_CLIPS = ("clip_grad_norm_", "clip_grad_value_")


@mistake
def zero_grad_dropped(source: SourceFile) -> Iterator[Edit]:
    """
    Gradients of earlier steps are never cleared, and add up.

    Source: snakers4/silero-vad pull request 699; pytorch/pytorch issue 47175.
    """
    yield from (source.drop(statement) for statement in source.statements("zero_grad"))


@mistake
def zero_grad_in_each_micro_batch(source: SourceFile) -> Iterator[Edit]:
    """
    Accumulated gradients are cleared before each backward pass but the last.

    Source: bytetriper/RAE issue 67; tatsu-lab/alpaca_farm issue 57.
    """
    for clear in source.statements("zero_grad"):
        for back in source.statements("backward"):
            loops = source.around(back, *LOOPS)
            if _same_function(source, clear, back) and loops and source.block(clear) != (
                source.block(back)
            ):  # fmt: skip
                yield source.insert(back, source.segment(clear))


@mistake
def zero_grad_before_step(source: SourceFile) -> Iterator[Edit]:
    """
    Gradients are cleared between the backward pass and the step, which has none.

    Source: cloneofsimo/lora issue 263; sacmehta/EdgeNets issue 14.
    """
    for clear, step in _pairs(source, "zero_grad", "step"):
        block = source.block(clear)
        between = block[block.index(clear) : block.index(step)]
        if any("backward" in words_in(statement) for statement in between):
            yield source.rotate(between)


@mistake
def step_before_backward(source: SourceFile) -> Iterator[Edit]:
    """
    Each step is made with the gradients of the batch before.

    Source: facebookresearch/vilbert-multi-task pull request 37.
    """
    for back, step in _pairs(source, "backward", "step"):
        block = source.block(back)
        yield source.rotate(block[block.index(back) : block.index(step) + 1])


@mistake
def loss_rewrapped(source: SourceFile) -> Iterator[Edit]:
    """
    The loss is made a new leaf before the backward pass, so that nothing behind it learns.

    Source: huggingface/torchMoji issue 21; isayev/ReLeaSE issue 39.
    """
    for call in source.calls("backward"):
        loss = receiver(call)
        if loss is not None and not isinstance(loss, ast.Call):
            text = source.segment(loss)
            yield source.replace(loss, f"({text}).detach().requires_grad_()")


@mistake
def layer_detached(source: SourceFile) -> Iterator[Edit]:
    """
    What a layer returns is detached, so that it and all before it learn nothing.

    Source: haowang1992/DSN issue 1; Stack Overflow question 55328966.
    """
    for call in source.calls(*_layers(source)):
        functions = source.around(call, ast.FunctionDef)
        inside = isinstance(call.func, ast.Attribute) and words_in(call.func.value) == "self"
        if functions and getattr(functions[0], "name", "") == "forward" and inside:
            yield source.replace(call, f"{source.segment(call)}.detach()")


@mistake
def detach_dropped(source: SourceFile) -> Iterator[Edit]:
    """
    Gradients flow where they were meant to stop.

    Source: znxlwm/pytorch-generative-model-collections issue 4 (the discriminator's step trains
    the generator).
    """
    for call in source.calls("detach"):
        value = receiver(call)
        if value is not None:
            yield source.replace(call, source.segment(value))


@mistake
def no_grad_dropped(source: SourceFile) -> Iterator[Edit]:
    """
    A graph is kept of what was meant to have none.

    Source: OpenNMT/OpenNMT-py issue 1141; hszhao/semseg issue 60.
    """
    for node in source.nodes:
        if isinstance(node, ast.Attribute) and node.attr in ("no_grad", "inference_mode"):
            yield source.replace(node, f"{source.segment(node.value)}.enable_grad")


@mistake
def clip_after_step(source: SourceFile) -> Iterator[Edit]:
    """
    Gradients are clipped when the step has used them.

    Source: VGraphRNN/VGRNN issue 4; awslabs/graphstorm issue 1366.
    """
    for clip, step in _pairs(source, _CLIPS, "step"):
        block = source.block(clip)
        yield source.rotate(block[block.index(clip) : block.index(step) + 1])


@mistake
def clip_before_unscale(source: SourceFile) -> Iterator[Edit]:
    """
    Gradients are clipped while they are scaled: the limit is thousands of times too low.

    Source: pytorch/examples issue 1196; milesial/Pytorch-UNet issue 468.
    """
    yield from (source.drop(statement) for statement in source.statements("unscale_"))


@mistake
def half_without_scaler(source: SourceFile) -> Iterator[Edit]:
    """
    Small gradients of float16 become zero.

    Source: engichang1467/Open-Rig3R issue 35.
    """
    for call in source.calls("GradScaler"):
        yield source.set_keyword(call, "enabled", "False")


def _same_function(source: SourceFile, a: ast.AST, b: ast.AST) -> bool:
    """Say whether two nodes stand in the same function."""
    return source.around(a, ast.FunctionDef)[:1] == source.around(b, ast.FunctionDef)[:1]


def _layers(source: SourceFile) -> set[str]:
    """Return the attributes that a class of the file assigns in `__init__`."""
    return {
        target.attr
        for node in source.nodes
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        for target in node.targets
        if isinstance(target, ast.Attribute)
    }


def _pairs(
    source: SourceFile, first: str | tuple[str, ...], then: str
) -> Iterator[tuple[ast.stmt, ast.stmt]]:
    """Yield calls of one name with the next of another in the same block, if not of a scheduler."""
    for a in source.statements(*((first,) if isinstance(first, str) else first)):
        block = source.block(a)
        for b in block[block.index(a) + 1 :]:
            if any(_is_step(call, then) for call in ast.walk(b)) and isinstance(b, ast.Expr):
                yield a, b
                break


def _is_step(node: ast.AST, name: str) -> bool:
    """Say whether a node is a call of this name on something that is no scheduler."""
    if not isinstance(node, ast.Call) or name_of(node) != name:
        return False
    owner = receiver(node)
    return owner is not None and "sched" not in words_in(owner)
