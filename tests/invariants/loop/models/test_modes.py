"""The judges of modes, and of what an evaluation leaves behind."""

import pytest

from trainguard.core.finding import Rank
from trainguard.events.loop import Evaluation, Parameter
from trainguard.events.origin import Origin
from trainguard.events.probe import Probe

TRAINS = "training_mode_is_on"
EVALUATES = "evaluation_mode_is_on"
LEAVES = "evaluation_leaves_no_trace"
LINE = "/home/me/train.py:31"
DROPOUT = ("Net.dropout", "Net.norm")


def measure(step: int = 5, **more) -> Evaluation:
    """Write a healthy evaluation between two steps."""
    row = {"module": "Net", "source": LINE, "passes": 4, "loss": 0.5, "measures": True}
    return Evaluation(**{"step": step, "clock": 10 * step + 5, **row, **more})


def sleeping(steps, since: int = 5, count: int = 20):
    """Write a run whose model is in evaluation mode since some step."""
    return steps(
        count,
        training=lambda i: i < since,
        asleep=lambda i: () if i < since else DROPOUT,
    )


def test_an_evaluation_that_does_not_switch_back(judged, steps) -> None:
    """The evaluation before the first such step is named, with its line."""
    (finding,) = judged(TRAINS, [*sleeping(steps), measure()])
    assert finding.summary == "`train` goes on training in evaluation mode"
    assert finding.at == "step 5, after the evaluation of Net, Net.dropout and 1 more"
    assert (finding.measured, finding.allowed) == ("asleep in 15 of 20 steps", "awake, as before")
    assert (finding.rank, finding.source) == (Rank.BROKEN, LINE)
    assert "model.train()" in finding.why
    assert len(judged(TRAINS, [*sleeping(steps, since=18), measure(18)])) == 1
    line = Origin(name="evaluation mode", source="/home/me/train.py:29")
    (finding,) = judged(TRAINS, [*sleeping(steps), measure(), line])
    assert finding.why == "model.train() is missing after the evaluation (train.py:29)"


@pytest.mark.parametrize(
    "between",
    [
        [],
        [measure(module="Teacher")],
        [measure(training=True)],
        [measure(step=3)],
        [measure(step=9)],
    ],
    ids=["none", "of another", "in training mode", "before", "after"],
)
def test_a_switch_without_its_evaluation_is_a_note(between, ranks, steps) -> None:
    """The last phase of a training may be made in evaluation mode on purpose."""
    assert ranks(TRAINS, [*sleeping(steps), *between]) == ["note"]


def test_a_model_that_was_never_in_training_mode_is_a_note(judged, steps) -> None:
    """As pretrained models are loaded."""
    (finding,) = judged(TRAINS, sleeping(steps, since=0))
    assert finding.summary == "`train` trains a model in evaluation mode"
    assert (finding.at, finding.measured, finding.allowed, finding.rank) == (
        "step 0, Net.dropout and 1 more",
        "asleep in 20 of 20 steps",
        "awake",
        Rank.NOTE,
    )


@pytest.mark.parametrize(
    ("measured", "reference", "label", "rank"),
    [
        (8, 8, "Net.norm", Rank.BROKEN),
        (8, 8, "Net.other", Rank.BROKEN),
        (7, 8, "Net.norm", Rank.NOTE),
        (3, 3, "Net.norm", Rank.NOTE),
        (8, 8, "Teacher.norm", Rank.NOTE),
    ],
)
def test_statistics_that_no_batch_has_moved(
    measured, reference, label, rank, judged, steps
) -> None:
    """Such a model is none that was loaded: in all looks, four or more, and of the same model."""
    row = {"measured": float(measured), "reference": float(reference), "label": label}
    probe = Probe(probe="virgin statistics", **row)
    (finding,) = judged(TRAINS, [*sleeping(steps, since=0), probe])
    assert finding.rank == rank
    assert finding.why.startswith("no batch has ever moved") == (rank is Rank.BROKEN)


@pytest.mark.parametrize(
    "more",
    [
        {"training": True, "asleep": DROPOUT},
        {"training": False, "asleep": ()},
        {"training": lambda i: i % 4 < 2, "asleep": lambda i: DROPOUT * (i % 4 >= 2)},
        {"training": lambda i: i != 19, "asleep": lambda i: DROPOUT * (i == 19)},
        {"training": lambda i: i >= 5, "asleep": lambda i: DROPOUT * (i < 5)},
        {"training": lambda i: i < 5, "asleep": DROPOUT},
    ],
    ids=["parts of it", "nothing to sleep", "in turns", "the last", "the first", "frozen before"],
)
def test_modes_that_are_left_alone(more: dict, ranks, steps) -> None:
    """Frozen batch statistics, modules without a mode, and what does not last to the end."""
    assert ranks(TRAINS, [*steps(20, **more), measure()]) == []


@pytest.mark.parametrize("length", [1, 11], ids=["one at a time", "several of those watched"])
def test_modes_that_come_in_turns_in_a_long_run(length: int, ranks, steps) -> None:
    """Of a run of which one step stands for three, an evaluation now and then explains nothing."""

    def sleeps(i: int) -> bool:
        """Say whether a step is one of those without dropout."""
        return i // length % 2 == 1

    more = {
        "step": lambda i: i if i < 60 else 60 + 3 * (i - 60),
        "span": lambda i: 1 + 2 * (i > 59),
    }
    modes = {"training": lambda i: not sleeps(i), "asleep": lambda i: DROPOUT * sleeps(i)}
    run = steps(99, **more, **modes)
    assert ranks(TRAINS, [*run, *(measure(i) for i in range(66, 97, 11))]) == []


def test_an_evaluation_in_the_middle_of_each_epoch(judged, steps) -> None:
    """Training mode comes back at the next epoch only: found where it happens more than once."""
    run = steps(20, training=lambda i: i % 10 < 5, asleep=lambda i: DROPOUT * (i % 10 >= 5))
    run = [*run, *steps(1, step=20, clock=210)]
    (finding,) = judged(TRAINS, [*run, measure(5), measure(15)])
    assert finding.at.startswith("step 5, after the evaluation of Net, ")
    assert (finding.measured, finding.rank) == ("asleep in 10 of 21 steps", Rank.BROKEN)
    assert judged(TRAINS, [*run, measure(5)]) == []


def test_a_model_that_does_not_learn_may_sleep(ranks, steps) -> None:
    """An image that is optimized against a classifier; the classifier stays as it is."""
    image = Parameter(name="Image.pixels")
    still, moved = (Parameter(name="Net.fc.weight", moved=m) for m in (False, True))
    run = sleeping(steps, since=0)
    assert ranks(TRAINS, [*run, image, still]) == []
    assert ranks(TRAINS, [*run, image, moved]) == ["note"]
    assert ranks(TRAINS, [*run, Parameter(name="Net.fc.weight", copy=True)]) == []


def test_each_optimizer_has_its_own_steps(judged, steps) -> None:
    """The one that goes on asleep is named."""
    run = [*steps(20, optimizer="Adam"), *sleeping(steps)]
    (finding,) = judged(TRAINS, [*run, measure()])
    assert finding.at.startswith("step 5 of SGD, ")


def test_a_loss_measured_in_training_mode(judged, steps) -> None:
    """Most evaluations are made with dropout awake."""
    awake = [measure(step, training=True, awake=DROPOUT) for step in (5, 10, 15)]
    (finding,) = judged(EVALUATES, [*steps(20), *awake, measure(19)])
    assert finding.summary == "`train` measures a loss in training mode"
    assert (finding.at, finding.measured, finding.allowed) == (
        "step 5, Net.dropout and 1 more",
        "awake in 3 of 4 evaluations",
        "asleep",
    )
    assert (finding.rank, finding.source) == (Rank.BROKEN, LINE)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, ["broken"]),
        ({"gradients": True}, ["broken"]),
        ({"gradients": True, "passes": 2}, ["broken"]),
        ({"gradients": True, "passes": 1}, []),
        ({"passes": 1}, ["broken"]),
        ({"measures": False}, []),
        ({"routine": True}, []),
        ({"training": False}, []),
        ({"awake": ()}, []),
        ({"step": 0}, []),
        ({"repeats": 3}, []),  # of 4 passes
        ({"repeats": 2}, ["broken"]),
    ],
    ids=str,
)
def test_evaluations_with_modules_awake(more: dict, expected, ranks, steps) -> None:
    """Batch statistics that are gathered, Monte Carlo dropout, a skipped batch, a first look."""
    one = measure(**{"training": True, "awake": DROPOUT, **more})
    assert ranks(EVALUATES, [*steps(20), one]) == expected


def test_half_of_the_evaluations_may_be_awake(ranks, steps) -> None:
    """A loss on training data may be measured beside the one on validation data."""
    pair = [measure(10, training=True, awake=DROPOUT), measure(10)]
    assert ranks(EVALUATES, [*steps(20), *pair]) == []


def test_an_evaluation_that_changes_the_model(judged, steps) -> None:
    """A buffer that each of several evaluations changes is broken."""
    touched = [measure(step, touched=("Net.mean", f"Net.cache{step}")) for step in (5, 10)]
    (finding,) = judged(LEAVES, [*steps(20), *touched, measure(15)])
    assert finding.summary == "an evaluation changes the model of `train`"
    assert (finding.at, finding.measured, finding.allowed) == (
        "step 5, Net.mean",
        "changed by 2 of 3 evaluations",
        "as before the evaluation",
    )
    assert (finding.rank, finding.source, finding.why) == (Rank.BROKEN, LINE, "")


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, ["note"]),
        ({"awake": DROPOUT}, []),
        ({"measures": False}, []),
        ({"routine": True}, []),
        ({"touched": ()}, []),
        ({"touched": ("Net.fc.weight", "Net.cache")}, []),
    ],
    ids=str,
)
def test_what_one_evaluation_may_leave(more: dict, expected, ranks, steps) -> None:
    """A cache may grow once; weights may be exchanged for the best ones, or for an average."""
    one = measure(**{"touched": ("Net.cache",), **more})
    assert ranks(LEAVES, [*steps(20), Parameter(name="Net.fc.weight"), one]) == expected
    again = measure(**{"touched": ("Net.cache",), **more, "step": 10})
    twice = ["broken"] if expected else []
    assert ranks(LEAVES, [*steps(20), Parameter(name="Net.fc.weight"), one, again]) == twice


def test_a_graph_for_nothing_is_a_note(judged, steps) -> None:
    """More than half of the evaluations in evaluation mode build one."""
    graphs = [measure(step, gradients=True, idle=True) for step in (5, 10)]
    (finding,) = judged(LEAVES, [*steps(20), *graphs, measure(15)])
    assert finding.summary == "an evaluation of `train` builds a graph that nothing uses"
    assert (finding.at, finding.measured, finding.allowed, finding.rank) == (
        "step 5, Net",
        "a graph in 2 of 3 evaluations",
        "no graph",
        Rank.NOTE,
    )
    assert judged(LEAVES, [*steps(20), *graphs, measure(15), measure(19)]) == []
    idle = [measure(step, gradients=True, idle=True, measures=False) for step in (5, 10)]
    assert judged(LEAVES, [*steps(20), *idle]) == []


@pytest.mark.parametrize("name", [TRAINS, EVALUATES, LEAVES])
def test_edges(name: str, judged, steps) -> None:
    """No run, one step, and healthy evaluations say nothing."""
    for run in ([], steps(1), sleeping(steps, since=0, count=1), [measure(), *steps(20)]):
        assert judged(name, run) == []


@pytest.mark.parametrize(("stays", "expected"), [(1.0, ["note"]), (0.0, [])])
def test_statistics_of_what_learned_before_it_was_frozen(stays, expected, ranks, steps) -> None:
    """A note where the part has not moved since, nor learns again."""
    moved = Parameter(name="Net.body.fc.weight", trainable=True, learns=False, moved=True)
    probe = Probe(probe="frozen statistics", measured=32, reference=stays, label="Net.body.norm")
    assert ranks("references_are_in_evaluation_mode", [*steps(20), moved, probe]) == expected
