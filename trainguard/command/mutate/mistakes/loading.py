"""Mistakes with data: its order, its splits, its batches and its scale."""

import ast
from collections.abc import Iterator

from trainguard.command.mutate.mistakes.operator import mistake
from trainguard.command.mutate.mistakes.source import Edit, SourceFile, keyword, words_in

_HELD_OUT = ("val", "valid", "test", "held", "eval", "dev")


@mistake
def shuffle_off(source: SourceFile) -> Iterator[Edit]:
    """
    Each epoch has its samples in the same order, that of the file.

    Source: DrexelChatbotGroup/DrexelChatbot issue 15; Stack Overflow question 39525358.
    """
    for call in source.calls("DataLoader"):
        given = keyword(call, "shuffle")
        if given is not None and "false" not in words_in(given):
            yield source.replace(given, "False")


@mistake
def validated_on_training_data(source: SourceFile) -> Iterator[Edit]:
    """
    The model is evaluated on what it was trained with.

    Source: KrishnaDN/x-vector-pytorch issue 8; ChenYichen9527/EV-UAV issue 25.
    """
    loaders = [call for call in source.calls("DataLoader") if call.args]
    trained = next((call for call in loaders if "shuffle" in words_of_keywords(call)), None)
    for call in loaders:
        if trained is not None and _is_held_out(source, call):
            yield source.replace(call.args[0], source.segment(trained.args[0]))
    names = {n.id for n in source.nodes if isinstance(n, ast.Name)}
    for node in source.nodes:
        if isinstance(node, ast.For) and isinstance(node.iter, ast.Name):
            twin = _training_twin(node.iter.id)
            if twin in names and twin != node.iter.id:
                yield source.replace(node.iter, twin)


@mistake
def last_batch_dropped(source: SourceFile) -> Iterator[Edit]:
    """
    The samples of the last, smaller batch are never seen.

    Source: thuml/Autoformer issue 104; ai2cm/ace issue 647.
    """
    for call in source.calls("DataLoader"):
        given = keyword(call, "drop_last")
        if given is None or "true" not in words_in(given):
            yield source.set_keyword(call, "drop_last", "True")


@mistake
def set_epoch_dropped(source: SourceFile) -> Iterator[Edit]:
    """
    Each epoch of a distributed sampler has the order of the first.

    Source: kan-bayashi/ParallelWaveGAN issue 177; pytorch/pytorch issue 31771.
    """
    yield from (source.drop(statement) for statement in source.statements("set_epoch"))


@mistake
def workers_seeded_alike(source: SourceFile) -> Iterator[Edit]:
    """
    All workers draw the same random numbers.

    Source: pytorch/pytorch issue 5059; TorchDSP/torchsig issue 343.
    """
    for call in source.calls("DataLoader"):
        yield from source.drop_keyword(call, "worker_init_fn")


@mistake
def labels_out_of_order(source: SourceFile) -> Iterator[Edit]:
    """
    Labels are those of other samples.

    Source: udacity/sdc-issue-reports issue 1326; aidotse/LeakPro issue 315.
    """
    for call in source.calls("TensorDataset"):
        if len(call.args) > 1 and not isinstance(call.args[-1], ast.Starred):
            last = call.args[-1]
            yield source.replace(last, f"({source.segment(last)}).flip(0)")


@mistake
def normalised_twice(source: SourceFile) -> Iterator[Edit]:
    """
    What was normalised is normalised once more.

    Source: soumith/imagenet-multiGPU.torch pull request 18; hao-ai-lab/FastVideo pull request 1055.
    """
    for node, values in _normalisations(source):
        twice = source.segment(node)
        begin, end = (at - source.span(node)[0] for at in source.span(values))
        text = twice.encode()
        inner = (text[:begin] + f"({twice})".encode() + text[end:]).decode()
        yield source.replace(node, f"({inner})")


@mistake
def normalisation_dropped(source: SourceFile) -> Iterator[Edit]:
    """
    Inputs keep the scale that they were measured in.

    Source: Nikronic/ObjectNet issue 3; TheDeepChecker's synthetic programs (missing normalisation).
    """
    for node, values in _normalisations(source):
        yield source.replace(node, f"({source.segment(values)})")


def words_of_keywords(call: ast.Call) -> set[str]:
    """Return the names of the keywords that are given something other than False."""
    return {k.arg or "" for k in call.keywords if words_in(k.value) != "false"}


def _is_held_out(source: SourceFile, call: ast.Call) -> bool:
    """Say whether a loader is one for evaluation, by its names."""
    held = words_in(call.args[0]) + " " + source.segment(source.statement(call)).partition("=")[0]
    return any(part.startswith(_HELD_OUT) for part in held.lower().replace("_", " ").split())


def _training_twin(name: str) -> str:
    """Return what a name of held-out data would be called, were it of training data."""
    for word in ("valid", "val", "test", "held_out", "eval", "dev"):
        if name.startswith(f"{word}_") or name.endswith(f"_{word}"):
            return name.replace(word, "train")
    return name


def _normalisations(source: SourceFile) -> Iterator[tuple[ast.BinOp, ast.expr]]:
    """Yield `(x - mean) / std`, and its x."""
    for node in source.operations(ast.Div):
        left, scaled = node.left, "std" in words_in(node.right)
        if isinstance(left, ast.BinOp) and scaled and "mean" in words_in(left.right):
            yield node, left.left
