"""Mistakes with losses: what they are given, how they are reduced, and what is made of them."""

import ast
from collections.abc import Iterator

from trainguard.command.mutate.mistakes.operator import mistake
from trainguard.command.mutate.mistakes.source import Edit, SourceFile, keyword, name_of, words_in

_ENTROPY = ("cross_entropy", "CrossEntropyLoss")
_BINARY = ("binary_cross_entropy_with_logits", "BCEWithLogitsLoss")
_REGRESSION = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
_REGRESSIONS = ("MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss")
_LOSSES = (*_ENTROPY, *_BINARY, *_REGRESSION, *_REGRESSIONS, "nll_loss", "NLLLoss", "kl_div")


@mistake
def loss_not_divided(source: SourceFile) -> Iterator[Edit]:
    """
    The loss of a micro-batch is not divided: the gradient is that many times too large.

    Source: hirofumi0810/neural_sp issue 168; ApolloResearch/e2e_sae pull request 70.
    """
    for node in source.operations(ast.Div):
        if "loss" in words_in(node.left) and _is_trained(source, node):
            yield source.replace(node, source.segment(node.left))


@mistake
def sum_for_mean(source: SourceFile) -> Iterator[Edit]:
    """
    A loss is the sum of its samples, so that its gradient grows with the batch.

    Source: zdebruine/MMVAE pull request 19; AppliedDataSciencePartners/WorldModels issue 12.
    """
    for call in source.calls(*_LOSSES):
        reduction = keyword(call, "reduction")
        if reduction is None or "mean" in words_in(reduction):
            yield source.set_keyword(call, "reduction", '"sum"')
    for call in source.calls("mean"):
        whole = not call.args and not call.keywords and _is_loss(source, call)
        if whole and isinstance(call.func, ast.Attribute):
            yield source.replace(call, f"{source.segment(call.func.value)}.sum()")


@mistake
def term_dropped(source: SourceFile) -> Iterator[Edit]:
    """
    One term of the loss is computed, and never added.

    Source: Guruprasad93/FlexibleMachineLearning issue 3.
    """
    for node in _sums(source):
        yield source.replace(node, source.segment(node.left))
        yield source.replace(node, source.segment(node.right))


@mistake
def term_detached(source: SourceFile) -> Iterator[Edit]:
    """
    One term of the loss is added as a number: it is in the curve, and nothing learns from it.

    Source: roman-vygon/triplet_loss_kws issue 6; haowang1992/DSN issue 1.
    """
    for node in _sums(source):
        yield source.replace(node.right, f"({source.segment(node.right)}).detach()")


@mistake
def softmax_before_cross_entropy(source: SourceFile) -> Iterator[Edit]:
    """
    Cross-entropy is given probabilities, and normalises them a second time.

    Source: Lightning-Universe/lightning-bolts issue 654; ariecattan/SciCo issue 2.
    """
    for logits in _inputs(source, *_ENTROPY):
        yield source.replace(logits, f"({source.segment(logits)}).softmax(1)")


@mistake
def sigmoid_twice(source: SourceFile) -> Iterator[Edit]:
    """
    A loss for logits is given probabilities: no prediction gets below a half.

    Source: yudi-mars/daisyRec pull request 15; cvg/glue-factory issue 89.
    """
    for logits in _inputs(source, *_BINARY):
        yield source.replace(logits, f"({source.segment(logits)}).sigmoid()")


@mistake
def probabilities_for_log_probabilities(source: SourceFile) -> Iterator[Edit]:
    """
    A likelihood is given probabilities, not their logarithms: the loss is negative.

    Source: yanx27/Pointnet_Pointnet2_pytorch issue 30;
    AnubhavGupta3377/Text-Classification-Models-Pytorch issue 9.
    """
    for call in source.calls("log_softmax", "LogSoftmax"):
        name = "softmax" if name_of(call) == "log_softmax" else "Softmax"
        owner = source.segment(call.func).rpartition(".")
        yield source.replace(call.func, f"{owner[0]}{owner[1]}{name}")


@mistake
def softmax_over_the_batch(source: SourceFile) -> Iterator[Edit]:
    """
    Probabilities are those of samples, and not of classes.

    Source: ctallec/world-models issue 10; perone/euclidesdb issue 2.
    """
    yield from _first_axis(source, "softmax", "log_softmax", "Softmax", "LogSoftmax")


@mistake
def argmax_over_the_batch(source: SourceFile) -> Iterator[Edit]:
    """
    Predictions are compared with labels along the wrong axis.

    Source: lisa-lab/DeepLearningTutorials pull request 15.
    """
    yield from _first_axis(source, "argmax", "topk")


@mistake
def target_broadcast(source: SourceFile) -> Iterator[Edit]:
    """
    A column meets a row, and each prediction is held against all targets.

    Source: pytorch/pytorch issue 16045; LAMDA-Tabular/TALENT pull request 92.
    """
    for target in _inputs(source, *_REGRESSION, *_REGRESSIONS, which=1):
        yield source.replace(target, f"({source.segment(target)}).unsqueeze(1)")


@mistake
def targets_not_shifted(source: SourceFile) -> Iterator[Edit]:
    """
    Each token is predicted from itself.

    Source: huggingface/transformers issue 35066.
    """
    for _, ahead in _shifts(source):
        yield source.replace(ahead, ":-1")


@mistake
def targets_shifted_twice(source: SourceFile) -> Iterator[Edit]:
    """
    The token after the next one is predicted.

    Source: InternLM/InternLM issue 318; wdndev/tiny-llm-zh issue 10.
    """
    for node, _ in _shifts(source):
        yield source.replace(node, f"{source.segment(node)}.roll(-1, 1)")


@mistake
def ignore_index_lost(source: SourceFile) -> Iterator[Edit]:
    """
    Padding is learned as if it were text.

    Source: mlabonne/llm-course issue 33; huggingface/trl pull request 6357.
    """
    for call in source.calls(*_LOSSES):
        yield from source.drop_keyword(call, "ignore_index")


@mistake
def class_weights_permuted(source: SourceFile) -> Iterator[Edit]:
    """
    The weight of a class is that of another one.

    Source: declare-lab/MELD issue 51; amanshenoy/multilogue-net issue 21.
    """
    for call in source.calls(*_ENTROPY, "nll_loss", "NLLLoss"):
        weight = keyword(call, "weight")
        if weight is not None:
            yield source.replace(weight, f"({source.segment(weight)}).flip(0)")


def _is_loss(source: SourceFile, node: ast.AST) -> bool:
    """Say whether a value becomes a loss: it is returned by one, or assigned to a name of one."""
    statement = source.statement(node)
    if isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign):
        targets = getattr(statement, "targets", None) or [statement.target]  # type: ignore[union-attr]
        return any("loss" in words_in(target) for target in targets)
    functions = source.around(node, ast.FunctionDef)
    name = getattr(functions[0], "name", "") if functions else ""
    return isinstance(statement, ast.Return) and "loss" in name.lower()


def _is_trained(source: SourceFile, node: ast.AST) -> bool:
    """Say whether a value is a loss that is handed to a backward pass, and not only logged."""
    statement = source.statement(node)
    return "backward" in words_in(statement) or _is_loss(source, node)


def _sums(source: SourceFile) -> Iterator[ast.BinOp]:
    """Yield the sums of which a loss is made."""
    for node in source.operations(ast.Add):
        plain = any(isinstance(n, ast.Constant) for n in (node.left, node.right))
        if _is_loss(source, node) and not plain:
            yield node


def _inputs(source: SourceFile, *names: str, which: int = 0) -> Iterator[ast.expr]:
    """Yield an argument of each call of a loss, whether it is a function or an object."""
    objects = {
        (target.attr if isinstance(target, ast.Attribute) else target.id).lower()
        for node in source.nodes
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        if name_of(node.value) in names
        for target in node.targets
        if isinstance(target, ast.Name | ast.Attribute)
    }
    functions = [name for name in names if name.islower()]
    for node in source.nodes:
        if isinstance(node, ast.Call) and len(node.args) > which:
            known = name_of(node) in functions or name_of(node).lower() in objects
            yield from [node.args[which]] * known


def _first_axis(source: SourceFile, *names: str) -> Iterator[Edit]:
    """Yield edits that let functions work along the first axis."""
    for call in source.calls(*names):
        axis = keyword(call, "dim") or keyword(call, "axis")
        axis = axis or next((a for a in reversed(call.args) if _is_number(a)), None)
        if axis is not None and source.segment(axis) != "0" and _is_number(axis):
            yield source.replace(axis, "0")


def _is_number(node: ast.AST) -> bool:
    """Say whether a node is a whole number."""
    inner = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(inner, ast.Constant) and type(inner.value) is int


def _shifts(source: SourceFile) -> Iterator[tuple[ast.Subscript, ast.Slice]]:
    """Yield `x[:, 1:]`, where `x[:, :-1]` is in the same function."""
    for node in source.nodes:
        if isinstance(node, ast.Subscript) and source.segment(node).rstrip("]").endswith("1:"):
            last = node.slice.elts[-1] if isinstance(node.slice, ast.Tuple) else node.slice
            scope = (source.around(node, ast.FunctionDef) or [source.tree])[0]
            if isinstance(last, ast.Slice) and ":-1" in source_of(source, scope).replace(" ", ""):
                yield node, last


def source_of(source: SourceFile, node: ast.AST) -> str:
    """Return the text of a function, or of the whole file."""
    return source.text.decode() if node is source.tree else source.segment(node)
