"""What the recorder sees of loss functions: where they are called, and with what."""

import gc
import inspect
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.functional import smooth_l1_loss

from tests.observe.loop.trainings import batches, network
from trainguard.events.loop import Term
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.losses.loss_functions import FUNCTIONS, LossFunctions

CLASSES = torch.tensor([0, 2, 1, 2])
SCORES = torch.tensor([[0.2, -1.0, 3.0], [1.0, 0.5, 2.0], [0.0, 0.0, 1.0], [9.0, 1.0, 0.1]])
SIGNS = torch.tensor([[1.0], [-1.0], [1.0], [-1.0]])
UNIT = torch.full((4, 3), 0.4)
MODULES = {
    "binary_cross_entropy": (nn.BCELoss(), (UNIT, UNIT)),
    "binary_cross_entropy_with_logits": (nn.BCEWithLogitsLoss(), (SCORES, UNIT)),
    "cosine_embedding_loss": (nn.CosineEmbeddingLoss(), (SCORES, UNIT, SIGNS.squeeze())),
    "cross_entropy": (nn.CrossEntropyLoss(), (SCORES, CLASSES)),
    "ctc_loss": (
        nn.CTCLoss(),
        (SCORES.log_softmax(1)[:, None], torch.tensor([[1, 2]]), (4,), (2,)),
    ),
    "gaussian_nll_loss": (nn.GaussianNLLLoss(), (SCORES, UNIT, UNIT)),
    "hinge_embedding_loss": (nn.HingeEmbeddingLoss(), (SCORES[:, :1], SIGNS)),
    "huber_loss": (nn.HuberLoss(), (SCORES, UNIT)),
    "kl_div": (nn.KLDivLoss(reduction="batchmean"), (SCORES.log_softmax(1), UNIT)),
    "l1_loss": (nn.L1Loss(), (SCORES, UNIT)),
    "margin_ranking_loss": (nn.MarginRankingLoss(), (SCORES, UNIT, SIGNS)),
    "mse_loss": (nn.MSELoss(), (SCORES, UNIT)),
    "multi_margin_loss": (nn.MultiMarginLoss(), (SCORES, CLASSES)),
    "multilabel_margin_loss": (
        nn.MultiLabelMarginLoss(),
        (SCORES, torch.tensor([[0, -1, -1]]).expand(4, 3).contiguous()),
    ),
    "multilabel_soft_margin_loss": (nn.MultiLabelSoftMarginLoss(), (SCORES, UNIT)),
    "nll_loss": (nn.NLLLoss(), (SCORES.log_softmax(1), CLASSES)),
    "poisson_nll_loss": (nn.PoissonNLLLoss(), (SCORES, UNIT)),
    "smooth_l1_loss": (nn.SmoothL1Loss(), (SCORES, UNIT)),
    "soft_margin_loss": (nn.SoftMarginLoss(), (SCORES[:, :1], SIGNS)),
    "triplet_margin_loss": (nn.TripletMarginLoss(), (SCORES, UNIT, SCORES + 1)),
    "triplet_margin_with_distance_loss": (
        nn.TripletMarginWithDistanceLoss(distance_function=nn.PairwiseDistance()),
        (SCORES, UNIT, SCORES + 1),
    ),
}


def terms(train, *arguments) -> list[Term]:
    """Record a training and return its Terms."""
    torch.manual_seed(0)
    with Recorder("x") as recorder:
        train(*arguments)
    return [event for event in recorder.trace if isinstance(event, Term)]


def stepping(loss, steps: int = 3) -> None:
    """Train a network with a loss of its output and the target."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for inputs, target in batches(steps):
        optimizer.zero_grad()
        loss(model(inputs), target).backward()
        optimizer.step()


@pytest.mark.parametrize("name", MODULES)
def test_a_loss_module_is_seen(name: str) -> None:
    """Every module for a loss calls a function that is watched, and returns what it did before."""
    module, arguments = MODULES[name]
    expected = module(*arguments)
    got: list[torch.Tensor] = []
    (term,) = terms(lambda: got.append(module(*arguments)))
    assert (term.function, term.calls, term.reduction) == (name, 1, module.reduction)
    assert term.input == tuple(arguments[0].shape)
    assert torch.equal(got[0], expected)


def test_no_loss_of_this_torch_is_left_out() -> None:
    """What torch calls a loss is either watched, or a module that computes its own."""
    public = {n for n in dir(F) if n.endswith("_loss") or n in ("cross_entropy", "kl_div")}
    assert public | {"linear_cross_entropy"} <= set(FUNCTIONS) | {"adaptive_log_softmax_with_loss"}
    assert {name for name in FUNCTIONS if hasattr(F, name)} - {"linear_cross_entropy"} == set(
        MODULES
    )


def test_calls_are_added_up_by_place() -> None:
    """Two lines are two places; so are training and evaluation on one line."""

    def measure(model: nn.Module, inputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        return F.mse_loss(model(inputs), target)

    def train() -> None:
        """Train, and evaluate after each step."""
        model = network()
        for inputs, target in batches(4):
            measure(model, inputs, target).backward()
            F.l1_loss(model(inputs), target, reduction="sum").backward()
            with torch.no_grad():
                measure(model, inputs, target)

    first, second, third = terms(train)
    lines, start = inspect.getsourcelines(measure)
    assert first.source == f"{__file__}:{start + len(lines) - 1}"
    assert (first.function, first.calls, first.evaluation) == ("mse_loss", 4, False)
    assert (second.function, second.calls, second.reduction) == ("l1_loss", 4, "sum")
    assert third.source == first.source
    assert (third.calls, third.evaluation) == (4, True)


def test_a_function_inside_another_is_not_counted() -> None:
    """Only the outermost loss function is the user's."""

    def distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Return a distance that is itself made of a loss function."""
        return F.mse_loss(a, b, reduction="none").mean(1)

    def train() -> None:
        """Compute one loss."""
        F.triplet_margin_with_distance_loss(SCORES, UNIT, SCORES + 1, distance_function=distance)

    (term,) = terms(train)
    assert term.function == "triplet_margin_with_distance_loss"


def test_a_name_that_was_imported_is_watched() -> None:
    """`from torch.nn.functional import smooth_l1_loss` in the user's module is seen, and undone."""
    before = smooth_l1_loss
    (term,) = terms(lambda: smooth_l1_loss(SCORES, UNIT))
    assert term.function == "smooth_l1_loss"
    assert smooth_l1_loss is before is F.smooth_l1_loss


@pytest.mark.parametrize(
    ("flags", "reduction"),
    [
        ({}, "mean"),
        ({"reduction": "none"}, "none"),
        ({"size_average": False}, "sum"),
        ({"reduce": False}, "none"),
        ({"size_average": True}, "mean"),
    ],
)
@pytest.mark.filterwarnings("ignore:size_average and reduce")
def test_the_reduction_is_told(flags, reduction: str) -> None:
    """The deprecated flags say the same as the names."""
    (term,) = terms(lambda: F.mse_loss(SCORES, target=UNIT, **flags))
    assert term.reduction == reduction


@pytest.mark.parametrize(
    ("shapes", "broadcasts"),
    [
        (((8, 1), (8,)), 2),
        (((8, 1), (1, 8)), 2),
        (((8, 1), (8, 1)), 0),
        (((8, 1), ()), 0),
        (((8, 3), (3,)), 0),
        (((1, 1), (1,)), 0),
    ],
)
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_expanding_both_is_told(shapes, broadcasts: int) -> None:
    """Only where the result has more elements than either side is there a table."""
    first, second = (torch.randn(shape) for shape in shapes)

    def train() -> None:
        """Call it twice from one place."""
        for _ in range(2):
            F.mse_loss(first, second)

    (term,) = terms(train)
    assert term.broadcasts == broadcasts


@pytest.mark.parametrize(
    ("make", "producer"),
    [
        (lambda x: x.softmax(1), "SoftmaxBackward0"),
        (lambda x: x.softmax(1).double().view(2, 2, 3).reshape(4, 3), "SoftmaxBackward0"),
        (lambda x: x.sigmoid()[:, :3], "SigmoidBackward0"),
        (lambda x: x.log_softmax(1), "LogSoftmaxBackward0"),
        (lambda x: x * 2, "MulBackward0"),
        (lambda x: x, ""),
    ],
)
def test_what_made_the_input_is_told(make, producer: str) -> None:
    """The name is autograd's, whatever the shape and dtype were changed to since."""
    leaf = SCORES.clone().requires_grad_()
    (term,) = terms(lambda: F.cross_entropy(make(leaf), CLASSES))
    assert term.producer == producer


def test_a_graph_is_not_kept_alive() -> None:
    """Once the user lets go of a loss, what it was computed from is gone."""
    with Recorder("x"):
        value = F.mse_loss(network()(torch.randn(8, 4)), torch.randn(8, 1))
        node = value.grad_fn.metadata
        kept = node["kept"] = nn.Identity()
        gone = weakref.ref(kept)
        del value, node, kept
        gc.collect()
        assert gone() is None


def test_functions_are_put_back() -> None:
    """After a recording, also one that failed, the functions are torch's own."""
    before = {name: getattr(F, name) for name in FUNCTIONS if hasattr(F, name)}
    with pytest.raises(ValueError, match="Using a target size"), Recorder("x"):
        F.binary_cross_entropy(UNIT, UNIT[:2])
    assert {name: getattr(F, name) for name in before} == before
    assert all("trainguard" not in inspect.getmodule(f).__name__ for f in before.values())


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_scripts_and_compiled_code_take_the_original() -> None:
    """torch.jit.script, torch.jit.trace and torch.compile work during a recording and after it."""

    class Loss(nn.Module):
        """A loss in the inside of a module."""

        def forward(self, scores: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
            """Return it."""
            return F.cross_entropy(scores, classes)

    expected = F.cross_entropy(SCORES, CLASSES)
    with Recorder("x"):
        compiled = torch.compile(Loss(), backend="eager", fullgraph=True)
        made = [
            torch.jit.script(Loss()),
            torch.jit.trace(Loss(), (SCORES, CLASSES)),
            compiled,
            torch.compile(Loss(), backend="aot_eager"),
        ]
        for module in made:
            assert torch.equal(module(SCORES, CLASSES), expected)
    torch._dynamo.reset()
    for module in made:
        assert torch.equal(module(SCORES, CLASSES), expected)


def test_odd_inputs_are_survived() -> None:
    """Empty batches, complex numbers, half precision, soft targets and one row are all computed."""

    def train() -> None:
        """Call losses with what is rare."""
        F.cross_entropy(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long))
        F.l1_loss(torch.ones(2, dtype=torch.complex64), torch.zeros(2, dtype=torch.complex64))
        F.cross_entropy(SCORES.bfloat16(), CLASSES)
        F.cross_entropy(SCORES.bfloat16().softmax(1), UNIT.bfloat16())
        F.cross_entropy(SCORES[0], CLASSES[0])
        F.cross_entropy(SCORES.repeat(2, 1)[:, :, None, None], CLASSES.repeat(2)[:, None, None])
        torch.func.vmap(F.mse_loss)(SCORES, UNIT)
        torch.func.grad(lambda x: F.nll_loss(x.log_softmax(1), CLASSES))(SCORES)

    assert [term.calls for term in terms(train)] == [1] * 8


def test_only_so_many_places_are_kept(tmp_path: Path) -> None:
    """A script that makes its code as it goes does not fill the trace."""
    lines = "\n".join("F.mse_loss(SCORES, UNIT)" for _ in range(400))
    code = compile(lines, str(tmp_path / "made.py"), "exec")
    assert len(terms(exec, code, {"F": F, "SCORES": SCORES, "UNIT": UNIT})) == 256


def test_what_is_noted_never_fails_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of ours leaves the value of the loss alone."""
    monkeypatch.setattr(LossFunctions, "_add", lambda *_: 1 / 0)
    with Recorder("x"):
        assert F.mse_loss(SCORES, SCORES) == 0
