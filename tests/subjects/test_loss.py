"""The declaration of a loss: what cannot be meant is said when it is made, with the way out."""

import sys

import pytest
import torch
from hypothesis import strategies as st

import trainguard as tg
from trainguard.core.errors import DeclarationError


def focal(logits, target=None, gamma=2.0):
    """Stand for a loss that takes three arguments."""


def triplet(anchor, positive, *, margin, swap=False):
    """Stand for a loss that cannot do without three of its arguments."""


class Pinball(torch.nn.Module):
    """A loss that is a module."""

    def forward(self, predicted, target=None):
        """Stand for a loss that takes two arguments."""


X = "logits=tg.real('B C', -9, 9)"
WRONG = {
    f"tg.Loss(focal, {X}, targt=tg.integer('B', 0, 1))": (
        "focal takes no input 'targt', and tg.Loss has no such option. Did you mean 'target'?"
    ),
    f"tg.Loss(focal, {X}, reductoin='mean')": (
        "focal takes no input 'reductoin', and tg.Loss has no such option."
        " Did you mean 'reduction'?"
    ),
    "tg.Loss(Pinball(), predictd=tg.real('B', 0, 1))": (
        "Pinball takes no input 'predictd', and tg.Loss has no such option."
        " Did you mean 'predicted'?"
    ),
    "tg.Loss(focal, inputs={'logit': tg.real('B C', -9, 9)})": (
        "focal takes no input 'logit', and tg.Loss has no such option. Did you mean 'logits'?"
    ),
    f"tg.Loss(focal, {X}, gamma=2)": (
        "tg.Loss(gamma=2) is neither a domain nor a Hypothesis strategy."
        " Write tg.choice(2) to fix it."
    ),
    "tg.Loss(print, tiemout=3)": (
        "tg.Loss(tiemout=3) is neither a domain nor a Hypothesis strategy. Did you mean 'timeout'?"
    ),
    "tg.Loss(focal, target=tg.integer('B', 0, 1))": (
        "tg.Loss(focal) declares no input with a gradient, so there is nothing to judge."
        " Declare at least one input as tg.real(...)."
    ),
    "tg.Loss(triplet, anchor=tg.real('B', 0, 1), margin=st.floats())": (
        "triplet needs an input 'positive', which tg.Loss is not told of."
        " Declare it: positive=tg.real(...)."
    ),
    "tg.Loss('focal')": (
        "tg.Loss got 'focal', which cannot be called. Pass the function itself, or an nn.Module."
    ),
    f"tg.Loss(focal, {X}, dtypes=('float32', 'bf16'))": (
        "dtypes has 'bf16'. Did you mean 'bfloat16'?"
    ),
    f"tg.Loss(focal, {X}, dtypes='float61')": "dtypes has 'float61'. Did you mean 'float64'?",
    f"tg.Loss(focal, {X}, dtypes=())": (
        "tg.Loss(dtypes=()) names no dtype, so there is nothing to judge. Leave it out for float32."
    ),
    f"tg.Loss(focal, {X}, reduction=tg.choice('mean', 'sum'))": (
        "tg.Loss(...) got an input for its own option 'reduction'."
        " Write inputs={'reduction': ...} for an input of that name."
    ),
    f"tg.Loss(focal, {X}, total=tg.real('B', 0, 1))": (
        "tg.Loss(...) got an input for its own option 'total'."
        " Write inputs={'total': ...} for an input of that name."
    ),
    f"tg.Loss(focal, {X}, reduction='average')": (
        "reduction has 'average'. Known: mean, none, sum."
    ),
    f"tg.Loss(focal, {X}, sizes={{'D': 3}})": "sizes has 'D'. Known: B, C.",
    f"tg.Loss(focal, {X}, sizes={{'C': 0}})": (
        "tg.Loss(sizes={'C': 0}) is no size. Give a number above zero, or (least, most)."
    ),
    f"tg.Loss(focal, {X}, sizes={{'C': (4, 2)}})": (
        "tg.Loss(sizes={'C': (4, 2)}) is no size. Give a number above zero, or (least, most)."
    ),
    f"tg.Loss(focal, {X}, target=tg.integer('B', 0, 'K-1'))": (
        "the bound of an input has 'K'. Known: B, C."
    ),
    "tg.Loss(focal, logits=tg.real('N C', -9, 9), reduction='mean')": (
        "tg.Loss(reduction='mean') promises something about the batch, and no input has the"
        " dimension 'B'. Call the batch dimension B."
    ),
    f"tg.Loss(focal, {X}, likelihood='targets', target=tg.integer('B', 0, 1))": (
        "likelihood has 'targets'. Did you mean 'target'?"
    ),
    f"tg.Loss(focal, {X}, likelihood='logits')": (
        "tg.Loss(likelihood='logits') names an input whose values cannot be listed."
        " Declare it as tg.integer(...) or tg.bins(...)."
    ),
    f"tg.Loss(focal, {X}, vary={{'gamma': 2.0}})": (
        "tg.Loss(vary={'gamma': 2.0}) is no Hypothesis strategy. Write st.just(2.0) to fix it."
    ),
    f"tg.Loss(focal, {X}, allow={{'value_is_finit': 'x'}})": (
        "allow={'value_is_finit': ...} names no loss invariant. Did you mean 'value_is_finite'?"
    ),
    f"tg.Loss(focal, {X}, allow={{'warmup_rises': 'x'}})": "allow={'warmup_rises': ...} names no*",
    f"tg.Loss(focal, {X}, allow={{'value_is_finite': ' '}})": (
        "allow={'value_is_finite': ' '} gives no reason. Say in a few words why it is so."
    ),
    f"tg.Loss(focal, {X}, limits={{'gradient_is_boundd': 9}})": (
        "limits={'gradient_is_boundd': ...} names no loss invariant."
        " Did you mean 'gradient_is_bounded'?"
    ),
    f"tg.Loss(focal, {X}, limits={{'gradient_is_bounded': 0}})": (
        "limits={'gradient_is_bounded': 0} is no limit. Give a number above zero."
    ),
    f"tg.Loss(focal, {X}, limits={{'gradient_is_bounded': 'big'}})": (
        "limits={'gradient_is_bounded': 'big'} is no limit. Give a number above zero."
    ),
    f"tg.Loss(focal, {X}, timeout=-1)": (
        "tg.Loss(timeout=-1) leaves no time. Give the seconds that one observation may take."
    ),
}


@pytest.mark.parametrize("code", WRONG)
def test_a_wrong_declaration(code: str) -> None:
    """One sentence says what is wrong with the value, one the way out."""
    with pytest.raises(DeclarationError) as caught:
        eval(code, {"tg": tg, "focal": focal, "triplet": triplet, "st": st, "Pinball": Pinball})
    told, expected = str(caught.value), WRONG[code]
    assert told.startswith(expected[:-1]) if expected.endswith("*") else told == expected


def test_what_a_declaration_remembers() -> None:
    """The name, the place, the tensors in order and the promises in plain values."""
    loss = tg.Loss(
        focal,
        target=tg.integer("B", 0, "C-1"),
        logits=tg.real("B C", -9, 3),
        gamma=st.floats(0, 5),
        limits={"gradient_is_bounded": 7},
        reduction="mean",
        dtypes="bfloat16",
    )
    assert (loss.name, loss.file, loss.dtypes) == ("focal", __file__, ("bfloat16",))
    assert list(loss.tensors) == ["target", "logits"]
    assert loss.promises == {"limit:gradient_is_bounded": 7.0, "magnitude:logits": 9}
    assert loss.promise_names == {"reduction"}


@pytest.mark.parametrize(
    ("more", "promised"),
    [
        ({"reduction": "none"}, "reduction"),
        ({"components": ("a", "b")}, "components"),
        ({"target": tg.bins("B", -1, 1, 4), "likelihood": "target"}, "likelihood"),
        ({"target": tg.mask("B")}, "mask"),
    ],
)
def test_promises_are_named(more: dict, promised: str) -> None:
    """Each promise has the name by which an invariant asks for it; one part is no promise."""
    assert tg.Loss(focal, logits=tg.real("B", 0, 1), **more).promise_names == {promised}
    assert tg.Loss(focal, logits=tg.real("B", 0, 1), components="a").promise_names == frozenset()


def test_an_input_may_have_the_name_of_an_option() -> None:
    """`inputs` takes what the keywords of tg.Loss would swallow."""
    loss = tg.Loss(lambda name: None, inputs={"name": tg.real("B", 0, 1)})
    assert list(loss.tensors) == ["name"]
    assert loss.name == "<lambda>"


def test_a_loss_of_any_keywords_takes_any_input() -> None:
    """Where the signature cannot be known, every input is taken."""
    made = tg.Loss(lambda *inputs, **more: None, a=tg.real("B", 0, 1), b=tg.real("B", 0, 1))
    assert list(made.tensors) == ["a", "b"]


def test_a_declaration_is_frozen() -> None:
    """Nobody changes a declaration that others judge by."""
    loss = tg.Loss(focal, logits=tg.real("B", 0, 1))
    with pytest.raises(AttributeError):
        loss.timeout = 1.0  # type: ignore[misc]


def test_declaring_imports_no_torch(pytester: pytest.Pytester) -> None:
    """A guard file that imports no torch itself does not cause it to be imported."""
    code = (
        "import sys\nimport trainguard as tg\n"
        "tg.Loss(lambda x: x, x=tg.real('B', -1, 1))\n"
        "assert not {'torch', 'numpy', 'hypothesis'} & sys.modules.keys()"
    )
    assert pytester.run(sys.executable, "-c", code).ret == 0


@pytest.mark.parametrize(
    ("declare", "told"),
    [
        (
            lambda r: tg.Loss(torch.nn.functional.l1_loss, input=r, target=r, allow=["a"]),
            'allow={"NAME": "why it',
        ),
        (
            lambda r: tg.Loss(torch.nn.functional.l1_loss, input=r, target=r, limits=3),
            'limits={"NAME": 0.1}.',
        ),
        (
            lambda r: tg.Loss(torch.nn.functional.l1_loss, input=r, target=r, vary=["a"]),
            "is no mapping. Write vary=",
        ),
        (
            lambda r: tg.Loss(torch.nn.functional.l1_loss, inputs=r),
            'inputs={"x": tg.real("B 4", -1, 1)}.',
        ),
        (lambda r: tg.Script("train.py", allow=["a"]), "tg.Script(allow=['a']) is no mapping."),
        (
            lambda r: tg.Loss(torch.nn.functional.l1_loss, input=(-1, 1), target=r),
            'Did you mean tg.real("B", -1, 1)?',
        ),
        (lambda _: tg.Loss(torch.nn.MSELoss), "got the class MSELoss. Pass one of it: MSELoss()."),
    ],
    ids=["excuses", "limits", "variants", "inputs", "of a script", "a range", "a class"],
)
def test_what_is_written_otherwise(declare, told: str) -> None:
    """One sentence says how it is to be written."""
    with pytest.raises(tg.DeclarationError) as refused:
        declare(tg.real("B", -1, 1))
    assert told in str(refused.value)
