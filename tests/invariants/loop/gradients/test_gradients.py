"""The judges of the gradients that steps are made with."""

from dataclasses import replace
from math import inf, nan

import pytest

from trainguard.core.finding import Rank
from trainguard.events.loop import Parameter, Read
from trainguard.events.probe import Probe

NORM = "total += p.grad.norm() ** 2"


def read(code: str = NORM, empty: int = 80, full: int = 0) -> Read:
    """Write what one line of the user's code read."""
    return Read(source="/home/me/train.py:41", code=code, empty=empty, full=full)


def test_lost_gradients_are_named_with_their_culprit(judged, steps) -> None:
    """The loss of the step is a number, and the gradients are not."""
    culprit = "gradient of `Net.fc1.weight`"
    run = steps(
        20,
        norm=lambda i: nan if i >= 5 else 1.0,
        culprit=lambda i: culprit if i >= 5 else "",
        loss=lambda i: nan if i >= 6 else 1.0,
    )
    (finding,) = judged("gradients_are_finite", run)
    assert finding.summary == "the gradients of `train` are not finite"
    assert (finding.at, finding.measured, finding.allowed) == ("step 5", "norm nan", "finite")
    assert finding.why.endswith(culprit)
    assert (finding.rank, finding.source) == (Rank.BROKEN, "/home/me/train.py:12")


@pytest.mark.parametrize(
    "more",
    [{"norm": inf}, {"norm": nan, "layers": (("Net.fc1.weight", nan, 9),)}],
    ids=["infinite", "a layer"],
)
def test_lost_gradients_need_no_culprit(more: dict, judged, steps) -> None:
    """An infinite norm is known, and a nan is where a layer has one."""
    (finding,) = judged("gradients_are_finite", steps(1, **more))
    assert "perhaps" in finding.why


def test_steep_functions_are_named(judged, steps) -> None:
    """Beside the culprit, each with its line."""
    places = [("sqrt", "/a/net.py:7"), ("log", "/a/net.py:9")]
    seen = [Probe(probe="steep", measured=1, label=label, source=line) for label, line in places]
    (finding,) = judged("gradients_are_finite", [*steps(1, norm=inf, culprit="x"), *seen])
    assert "; `sqrt` at net.py:7 has an infinite slope at 0: add a small number" in finding.why
    assert "; `log` at net.py:9 has an infinite slope at 0, which times the 0" in finding.why


@pytest.mark.parametrize(
    "more",
    [
        {"norm": nan, "layers": ()},
        {"norm": inf, "loss": nan, "losses": (nan,)},
        {"norm": inf, "skipped": True},
        {"norm": lambda i: inf if i in (3, 9) else 1.0, "scale": 1024.0},
        {"norm": lambda i: inf if i in (3, 9) else 1.0, "skipped": lambda i: i == 3},
        {"norm": lambda i: inf if i == 8 else 1.0, "loss": lambda i: nan if i == 5 else 1.0},
        {"culprit": "output of `Net.fc1`"},
    ],
    ids=["unknown", "lost", "skipped", "by the optimizer", "by one of them", "later", "not here"],
)
def test_a_norm_that_may_be_anything(more: dict, ranks, steps) -> None:
    """An unknown norm, a lost loss and a skipped step are no lost gradients."""
    assert ranks("gradients_are_finite", steps(20, **more)) == []


def test_a_scaler_does_not_hide_what_is_lost_for_good(judged, steps) -> None:
    """With a scaler a step is found as well, if nothing is sound after it."""
    run = steps(20, norm=lambda i: inf if i in (3, 19) else 1.0, scale=1024.0)
    assert [f.at for f in judged("gradients_are_finite", run)] == ["step 19"]
    run = steps(20, norm=lambda i: inf if i in (3, 4) else 1.0, scale=1024.0)
    assert [f.at for f in judged("gradients_are_finite", run)] == ["step 3"]


def test_without_a_scaler_nobody_left_the_step_out(ranks, steps) -> None:
    """One step with infinite gradients is found, though the run went on."""
    run = steps(20, norm=lambda i: inf if i == 3 else 1.0)
    assert ranks("gradients_are_finite", run) == ["broken"]
    skipped = {"loss": lambda i: nan if i == 1 else 1.0, "skipped": lambda i: i == 1}
    run = steps(20, norm=lambda i: inf if i >= 3 else 1.0, **skipped)
    assert ranks("gradients_are_finite", run) == ["broken"]


@pytest.mark.parametrize(("skips", "expected"), [(39, []), (40, ["broken"])])
def test_steps_skipped_for_good(skips: int, expected: list, judged, steps) -> None:
    """A factor that was halved forty times is not what makes gradients infinite."""
    run = steps(60, skipped=lambda i: i >= 60 - skips, norm=lambda i: inf if i > 60 - skips else 1)
    found = judged("gradients_are_finite", run)
    assert [f.rank.value for f in found] == expected
    assert [f.measured for f in found] == ["40 steps skipped in a row"] * len(expected)
    assert judged("gradients_are_finite", [replace(step, loss=inf) for step in run]) == []
    named = judged("gradients_are_finite", [replace(step, culprit="`x`") for step in run])
    assert [f.why.endswith("`x`") for f in named] == [True] * len(expected)


def test_leftover_gradients_are_found(judged, steps) -> None:
    """Without zero_grad each step has the gradients of all steps before."""
    run = steps(20, leftover=lambda i: 0.9 * (i > 0), norm=1.0, leftover_name="Net.fc1.weight")
    (finding,) = judged("gradients_start_empty", run)
    assert "had already used" in finding.summary
    assert (finding.at, finding.rank) == ("step 1, Net.fc1.weight", Rank.BROKEN)
    assert finding.measured == "0.9 of the step's gradient norm, in 19 of 19 steps"
    assert finding.allowed == "at most 0.001 of it"


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"leftover": lambda i: float(i == 3)}, []),
        ({"leftover": lambda i: float(i % 2)}, ["broken"]),
        ({"leftover": lambda i: float(i % 3 == 1)}, []),
        ({"leftover": 1e-4}, []),
        ({"leftover": nan}, []),
        ({"leftover": 1.0, "norm": nan}, ["broken"]),
        ({"leftover": lambda i: float(i == 0)}, []),
    ],
    ids=["once", "10 of 19", "a third", "decayed", "nan", "unknown norm", "before the run"],
)
def test_leftovers_now_and_then(more: dict, expected: list, ranks, steps) -> None:
    """Only what is left in most steps, and matters, is a missing zero_grad."""
    assert ranks("gradients_start_empty", steps(20, **more)) == expected


def test_a_leftover_beside_an_unknown_norm_is_measured_by_itself(judged, steps) -> None:
    """Without the norm of the step there is no share of it."""
    (finding,) = judged("gradients_start_empty", steps(20, leftover=0.5, norm=nan))
    assert finding.measured == "0.5 left over, in 19 of 19 steps"
    assert finding.at == "step 1"


def test_a_first_step_has_nothing_before_it(ranks, steps) -> None:
    """One step is never judged; the second of two is."""
    assert ranks("gradients_start_empty", steps(1, leftover=1.0)) == []
    assert ranks("gradients_start_empty", steps(2, leftover=1.0)) == ["broken"]
    assert ranks("gradients_start_empty", steps(2, leftover=1.0, skipped=True)) == []


def test_the_share_that_is_allowed_is_the_subjects(ranks, steps) -> None:
    """A team that decays its gradients by hand can say so."""
    limit = {"limit:gradients_start_empty": 0.95}
    run = steps(20, leftover=0.9, norm=1.0)
    assert ranks("gradients_start_empty", run) == ["broken"]
    assert ranks("gradients_start_empty", run, **limit) == []


def test_a_read_of_cleared_gradients_is_named(judged, steps) -> None:
    """The line is named that measures a norm after zero_grad."""
    (finding,) = judged("gradient_norm_is_measured_before_zeroing", [*steps(20), read()])
    assert finding.summary == "`train` reads gradients after they are cleared"
    assert (finding.at, finding.source) == (NORM, "/home/me/train.py:41")
    assert finding.measured == "gradients at 0 of 80 reads"
    assert (finding.allowed, finding.rank) == ("at least 1 of 80", Rank.BROKEN)
    called = replace(read(), called="/home/me/train.py:73")
    (finding,) = judged("gradient_norm_is_measured_before_zeroing", [*steps(20), called])
    assert finding.why.endswith("take it before (train.py:73)")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (read("if p.grad is not None:"), ["broken"]),
        (read("if p.grad is not None: total += p.grad.norm()"), ["broken"]),
        (read(""), ["broken"]),
        (read("if p.grad is None:"), ["note"]),
        (read("if p.grad is None: continue"), ["note"]),
        (read(empty=2), ["broken"]),
        (read("if p.grad is None: p.grad = torch.zeros_like(p)"), []),
        (read("if p.grad is not None:\n    p.grad.zero_()"), []),
        (read("assert p.grad is None"), []),
        (read(full=1), []),
        (read(empty=1), []),
    ],
    ids=[
        "asks and measures",
        "in a line",
        "unknown code",
        "asks",
        "leaves out",
        "twice",
        "creates",
        "clears",
        "asserts",
        "sees",
        "single",
    ],
)
def test_reads(line: Read, expected: list, ranks, steps) -> None:
    """Only a line that never sees a gradient, and is there to see one, is at fault."""
    assert ranks("gradient_norm_is_measured_before_zeroing", [*steps(20), line]) == expected


def test_gradients_cleared_before_the_step_are_found(judged, steps) -> None:
    """Zero_grad between backward and step leaves nothing to step with."""
    run = steps(20, norm=0.0, order=("forward", "backward", "zero"), received=0)
    (finding,) = judged("gradient_norm_is_positive", run)
    assert finding.summary.endswith("cleared before the step that should use them")
    assert (finding.at, finding.measured) == ("step 0", "norm 0 in 20 of 20 steps")
    assert (finding.allowed, finding.rank) == ("above 0", Rank.BROKEN)


def test_gradients_cleared_before_the_step_may_have_no_norm(ranks, steps) -> None:
    """Where nothing is left there is no norm to know; where there is, it is only unknown."""
    late = {"order": ("backward", "zero"), "norm": nan}
    assert ranks("gradient_norm_is_positive", steps(1, received=0, **late)) == ["broken"]
    assert ranks("gradient_norm_is_positive", steps(20, received=4, **late)) == []
    assert ranks("gradient_norm_is_positive", steps(20, received=0, held=0, **late)) == []


def test_gradients_of_zero_are_found(judged, steps) -> None:
    """A clamp that is always active leaves a loss and no gradient."""
    (finding,) = judged("gradient_norm_is_positive", steps(20, norm=0.0))
    assert finding.summary == "the gradients of `train` are zero"
    assert (finding.at, finding.rank) == ("step 0", Rank.BROKEN)
    assert finding.measured == "norm 0 in 20 of 20 steps"


@pytest.mark.parametrize(
    "more",
    [
        {"norm": lambda i: float(i % 2)},
        {"norm": 0.0, "loss": 0.0},
        {"norm": 0.0, "received": 0},
        {"norm": 0.0, "losses": (), "order": ()},
        {"norm": 0.0, "skipped": True},
        {"norm": nan},
        {"norm": 0.0, "count": 1},
        {"order": ("forward", "backward", "zero")},
        {"order": ("forward", "backward", "zero"), "received": 0},
    ],
    ids=[
        "half",
        "no loss",
        "not reached",
        "no backward",
        "skipped",
        "unknown",
        "one",
        "two nets",
        "assigned",
    ],
)
def test_zero_gradients_that_may_be(more: dict, ranks, steps) -> None:
    """Steps with nothing to learn, or with nothing known, are no dead run."""
    assert ranks("gradient_norm_is_positive", steps(**{"count": 20, **more})) == []


@pytest.mark.parametrize("more", [{"losses": ()}, {"order": ()}], ids=["order", "loss"])
def test_either_sign_of_a_backward_pass_will_do(more: dict, ranks, steps) -> None:
    """Backward ran where a value was handed to it, and where it was seen."""
    assert ranks("gradient_norm_is_positive", steps(2, norm=0.0, **more)) == ["broken"]


def test_one_of_several_optimizers_may_have_no_gradient(ranks, steps) -> None:
    """Tasks that take turns step optimizers that no gradient was meant for."""
    late = ("forward", "backward", "zero")
    run = [*steps(20, norm=0.0, received=0, order=late), *steps(20, optimizer="Adam")]
    assert ranks("gradient_norm_is_positive", run) == []
    assert ranks("gradient_norm_is_positive", run[:20]) == ["broken"]
    run = [*steps(20, norm=0.0, loss=0.0, order=late), *steps(20, optimizer="Adam")]
    assert ranks("gradient_norm_is_positive", run) == ["broken"]


def test_one_of_several_optimizers_may_always_be_cleared_before_its_step(ranks, steps) -> None:
    """Where gradients arrive for it and none is ever there when it steps; once is enough."""
    late = {"norm": 0.0, "order": ("backward", "zero"), "thrown": 1}
    beside = steps(20, optimizer="Adam")
    run = [*steps(20, received=0, **late), *beside]
    assert ranks("gradient_norm_is_positive", run) == ["broken"]
    run = [*steps(20, received=lambda i: int(i == 3), **late), *beside]
    assert ranks("gradient_norm_is_positive", run) == []


def test_an_optimizer_of_frozen_parameters(judged, ranks, steps) -> None:
    """Five steps with nothing to train are a mistake, beside another optimizer perhaps none."""
    frozen = {"norm": 0.0, "received": 0, "held": 0, "update": nan}
    (finding,) = judged("gradient_norm_is_positive", steps(20, **frozen))
    assert "frozen parameters only" in finding.summary
    assert ranks("gradient_norm_is_positive", steps(4, **frozen)) == []
    assert ranks("gradient_norm_is_positive", steps(20, **{**frozen, "update": 0.1})) == []
    beside = [*steps(20), *steps(20, **frozen, optimizer="Adam#2")]
    assert ranks("gradient_norm_is_positive", beside) == ["note"]


@pytest.mark.parametrize(("dead", "expected"), [(20, ["broken"]), (19, [])])
def test_layers_that_died(dead: int, expected: list, ranks, steps) -> None:
    """The first weights get zeros, the last bias still learns."""
    rows = [("0.weight", 2, dead), ("2.weight", 2, dead), ("4.weight", 2, 0), ("4.bias", 1, 0)]
    parameters = [
        Parameter(name=f"Net.{name}", dimensions=n, received=60, gradient=1.0, dead=zeros)
        for name, n, zeros in rows
    ]
    assert ranks("gradient_norm_is_positive", [*steps(60), *parameters]) == expected
    assert ranks("gradient_norm_is_positive", [*steps(60), *parameters[::-1]]) == []


def test_an_optimizer_that_no_gradient_reaches(judged, ranks, steps) -> None:
    """Broken where all that an optimizer holds is used, and never gets a gradient."""
    nothing = {"norm": nan, "received": 0, "held": 2, "update": nan, "optimizer": "Adam#2"}
    idle = [Parameter(name=f"G.{n}", module="G", moved=False, rate=0.1) for n in "ab"]
    (finding,) = judged("gradient_norm_is_positive", [*steps(30), *steps(20, **nothing), *idle])
    assert finding.summary.startswith("no gradient ever reaches the parameters of an optimizer")
    for spared in (
        [*steps(30), *steps(19, **nothing), *idle],
        [*steps(30), *steps(20, **nothing), idle[0]],
        [*steps(30), *steps(20, **nothing, losses=()), *idle[1:], replace(idle[0], moved=True)],
        [*steps(30), *steps(20, **{**nothing, "received": lambda i: i // 19}), *idle],
    ):
        assert ranks("gradient_norm_is_positive", spared) == []


def test_an_optimizer_of_another_model(judged, ranks, steps) -> None:
    """Broken where the only optimizer gets nothing, and all gradients go to what it leaves out."""
    nothing = {"norm": nan, "received": 0, "held": 2, "update": nan}
    policy = Parameter(name="Q.a", module="Q", held=False, received=20, moved=False)
    (finding,) = judged("gradient_norm_is_positive", [*steps(20, **nothing), policy])
    assert "another model" in finding.why
    for spared in (
        [*steps(19, **nothing), policy],
        [*steps(20, **nothing), replace(policy, received=0)],
        [*steps(20, **nothing), replace(policy, trainable=False)],
        [*steps(20, **{**nothing, "update": 0.1}), policy],
    ):
        assert ranks("gradient_norm_is_positive", spared) == []
