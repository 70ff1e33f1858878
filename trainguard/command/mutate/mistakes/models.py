"""Mistakes in models: layers that are frozen, shared, unused or left out, and masks."""

import ast
from collections.abc import Iterator

from trainguard.command.mutate.mistakes.operator import mistake
from trainguard.command.mutate.mistakes.rates import optimizers
from trainguard.command.mutate.mistakes.source import (
    Edit,
    SourceFile,
    keyword,
    name_of,
    receiver,
    words_in,
)

_MASKS = ("key_padding_mask", "src_key_padding_mask", "tgt_key_padding_mask")


@mistake
def layer_frozen(source: SourceFile) -> Iterator[Edit]:
    """
    The first part of a model is frozen before its optimizer is made.

    Source: discuss.pytorch.org/t/84911; facebookresearch/detectron2 issue 2486.
    """
    for call in _parameter_calls(source):
        model = source.segment(receiver(call) or call)
        text = f"next({model}.children(), {model}).requires_grad_(False)"
        yield source.insert(source.statement(call), text)


@mistake
def parameters_left_out(source: SourceFile) -> Iterator[Edit]:
    """
    The last parameters of a model are in no optimizer.

    Source: zjunlp/HVPNeT issue 5; ifzhang/FairMOT issue 19.
    """
    for call in _parameter_calls(source):
        yield source.replace(call, f"list({source.segment(call)})[:-2]")


@mistake
def group_left_out(source: SourceFile) -> Iterator[Edit]:
    """
    A group of parameters is left out of the optimizer.

    Source: zjunlp/HVPNeT issue 5 (the last group is made, and never appended).
    """
    for node in source.nodes:
        groups = node.elts if isinstance(node, ast.List) else []
        if all(isinstance(e, ast.Dict) and "params" in words_in(e) for e in groups) and groups[1:]:
            for element in groups:
                rest = [source.segment(e) for e in groups if e is not element]
                yield source.replace(node, f"[{', '.join(rest)}]")


@mistake
def layers_shared(source: SourceFile) -> Iterator[Edit]:
    """
    A stack of layers is one layer, many times.

    Source: acids-ircam/ddsp_pytorch issue 37; IDEA-Research/DAB-DETR pull request 17.
    """
    for call in source.calls("ModuleList", "Sequential"):
        for node in ast.walk(call):
            if isinstance(node, ast.GeneratorExp | ast.ListComp) and isinstance(node.elt, ast.Call):
                loop, made = node.generators[0], source.segment(node.elt)
                if source.segment(loop.target) not in {n.id for n in _names(node.elt)}:
                    count = f"len(list({source.segment(loop.iter)}))"
                    yield source.replace(node, f"([{made}] * {count})")


@mistake
def layer_unused(source: SourceFile) -> Iterator[Edit]:
    """
    A layer is there, and what it makes is not used.

    Source: inria-thoth/HySUPP issue 3; Nota-NetsPresso/netspresso-trainer issue 320.
    """
    for statement in source.nodes:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call):
            call, target = statement.value, statement.targets[0]
            if call.args and source.segment(target) == source.segment(call.args[0]):
                yield source.drop(statement)


@mistake
def activation_dropped(source: SourceFile) -> Iterator[Edit]:
    """
    Two linear layers follow each other, and are one.

    Source: Nota-NetsPresso/netspresso-trainer issue 320; UMLAUT (CHI 2021), whose study plants it.
    """
    for call in source.calls("ReLU", "GELU", "SiLU", "Tanh", "LeakyReLU"):
        owner = source.segment(call.func).rpartition(".")
        yield source.replace(call, f"{owner[0]}{owner[1]}Identity()")
    for call in source.calls("relu", "gelu", "silu", "tanh"):
        if len(call.args) == 1:
            yield source.replace(call, f"({source.segment(call.args[0])})")


@mistake
def causal_mask_dropped(source: SourceFile) -> Iterator[Edit]:
    """
    Each position sees those after it, which it is to predict.

    Source: rainmaker22/SMART issue 42; alex-matton/causal-transformer-decoder issue 1.
    """
    for node in source.nodes:
        if isinstance(node, ast.keyword) and node.arg == "is_causal" and "true" in words_in(node):
            yield source.replace(node.value, "False")
    for call in source.calls("tril", "triu"):
        yield source.replace(call, _triangle(source, call, 1_000_000))


@mistake
def causal_mask_off_by_one(source: SourceFile) -> Iterator[Edit]:
    """
    Each position sees the next one, which it is to predict.

    Source: pbloem/former issue 10; RVC-Boss/GPT-SoVITS issue 965.
    """
    for call in source.calls("tril", "triu"):
        yield source.replace(call, _triangle(source, call, 1))


@mistake
def padding_mask_inverted(source: SourceFile) -> Iterator[Edit]:
    """
    Attention sees padding, and no text.

    Source: mlwithme/TransformerTranslation issue 6; pytorch/pytorch issue 92554.
    """
    for node in source.nodes:
        if isinstance(node, ast.keyword) and node.arg in _MASKS:
            yield source.replace(node.value, f"~({source.segment(node.value)})")


@mistake
def batch_first_lost(source: SourceFile) -> Iterator[Edit]:
    """
    Attention and recurrence run over the samples of a batch, not over positions.

    Source: HHTseng/video-classification issue 42; ray075hl/Bi-Model-Intent-And-Slot pull request 2.
    """
    for node in source.nodes:
        if isinstance(node, ast.keyword) and node.arg == "batch_first" and "true" in words_in(node):
            yield source.replace(node.value, "False")


@mistake
def dropout_never_off(source: SourceFile) -> Iterator[Edit]:
    """
    Dropout goes on in evaluation.

    Source: rixwew/pytorch-fm issue 21; pytorch/pytorch issue 26338.
    """
    for call in source.calls("dropout"):
        training = keyword(call, "training") or next(iter(call.args[2:3]), None)
        if training is not None and "training" in words_in(training):
            yield source.replace(training, "True")


def _parameter_calls(source: SourceFile) -> Iterator[ast.Call]:
    """Yield `model.parameters()`, where it is given to an optimizer as it is."""
    for call in optimizers(source):
        first = next(iter(call.args), keyword(call, "params"))
        if isinstance(first, ast.Call) and name_of(first) == "parameters":
            yield first


def _names(node: ast.AST) -> Iterator[ast.Name]:
    """Yield the names in a node."""
    yield from (n for n in ast.walk(node) if isinstance(n, ast.Name))


def _triangle(source: SourceFile, call: ast.Call, further: int) -> str:
    """Return a call of `tril` or `triu` with its diagonal further up."""
    method = isinstance(call.func, ast.Attribute) and words_in(call.func.value) != "torch"
    positional = call.args if method else call.args[1:]
    diagonal = keyword(call, "diagonal") or next(iter(positional), None)
    start = source.segment(diagonal) if diagonal is not None else "0"
    held = "" if method else source.segment(call.args[0]) + ", "
    return f"{source.segment(call.func)}({held}diagonal=({start}) + {further})"
