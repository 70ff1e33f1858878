"""`tg.check`: observe, judge, drop what is excused, without pytest."""

import pytest
import torch

import trainguard as tg
from trainguard.core.catalogue import catalogue
from trainguard.core.errors import DeclarationError, SubjectError
from trainguard.core.settings import Settings
from trainguard.judging.judge import (
    Observations,
    _merge_findings,
    applicable,
    check_excuses_apply,
    verdict,
)
from trainguard.judging.verdict import Config, Verdict, observed_as, reference_dtype
from trainguard.report.text import render, render_verdict

SWEEP = ("value_is_finite", "gradient_is_finite")
X = tg.real("B", -1, 1)
CPU = ("cpu",)


def square(x):
    """Return a loss in which everything holds."""
    return (x**2).sum()


def root(x):
    """Return a loss whose untaken branch leaks a nan."""
    return torch.where(x > 0, x.abs().sqrt(), x).sum()


def quick(subject: tg.Loss, *select: str, **options) -> tuple:
    """Check a subject at the least effort."""
    return tg.check(subject, select=select, devices=CPU, profile="quick", **options)


def test_a_healthy_subject_passes() -> None:
    """Each invariant that was judged has a verdict, with the points that were explored."""
    verdicts = quick(tg.Loss(square, x=X, name="square"), *SWEEP)
    assert [(v.invariant.name, v.outcome, str(v.config)) for v in verdicts] == [
        ("value_is_finite", "passed", "cpu-float32"),
        ("gradient_is_finite", "passed", "cpu-float32"),
    ]
    assert verdicts[0].points > 1000


def test_the_verdicts_are_shown_as_a_report() -> None:
    """In a prompt and in a notebook they are counted, not listed with all that they hold."""
    verdicts = quick(tg.Loss(square, x=X, name="square"), *SWEEP)
    assert repr(verdicts) == "square: 2 invariants judged: 2 passed"
    assert "<b>square</b>: 2 invariants judged" in verdicts._repr_html_()


def test_a_broken_subject_raises() -> None:
    """The message is the whole report, and the verdicts can be asked for."""
    with pytest.raises(tg.Broken) as caught:
        quick(tg.Loss(root, x=X, name="root_loss"), *SWEEP)
    (judged,) = caught.value.verdicts
    assert (judged.outcome, judged.invariant.name) == ("broken", "gradient_is_finite")
    lines = str(caught.value).splitlines()
    assert lines == render_verdict(judged).splitlines()
    assert lines[0] == "gradient_is_finite: the gradient of `root_loss` is not finite"
    assert "  smallest  root(x=torch.tensor([0.]))" in lines
    assert "  rerun     tg.check(root_loss)" in lines


def test_an_excuse_excuses() -> None:
    """What breaks and is excused has its reason for a text and raises nothing."""
    excused = tg.Loss(root, x=X, allow={"gradient_is_finite": "see ticket 7"})
    _, judged = quick(excused, *SWEEP)
    assert (judged.outcome, judged.reason) == ("excused", "see ticket 7")
    assert judged.findings[0].smallest == ""  # nobody reads it, so nobody searches for it


def test_a_stale_excuse_raises() -> None:
    """An excuse for what holds is broken too."""
    stale = tg.Loss(square, x=X, allow={"gradient_is_finite": "once"})
    with pytest.raises(tg.Broken, match=r"`square` is excused and does not break it") as caught:
        quick(stale, *SWEEP)
    assert [v.outcome for v in caught.value.verdicts] == ["stale"]


def loud(x):
    """Return a loss that does nothing wrong but print."""
    print("loss")
    return (x**2).sum()


def test_a_note_fails_under_strict_only() -> None:
    """A note is told by default, and broken under `strict`."""
    noisy = tg.Loss(loud, x=X)
    (judged,) = quick(noisy, "call_leaves_no_trace")
    assert (judged.outcome, [n.summary for n in judged.notes]) == ("passed", ["`loud` prints"])
    with pytest.raises(tg.Broken, match="call_leaves_no_trace: `loud` prints"):
        quick(noisy, "call_leaves_no_trace", strict=True)


def test_an_excuse_covers_a_note() -> None:
    """An excuse for what is only noted is not stale."""
    noisy = tg.Loss(loud, x=X, allow={"call_leaves_no_trace": "it says hello"})
    assert [v.outcome for v in quick(noisy, "call_leaves_no_trace", strict=True)] == ["excused"]


def test_options_that_cannot_be_meant() -> None:
    """An unknown invariant or profile is an error with a suggestion."""
    subject = tg.Loss(square, x=X)
    with pytest.raises(DeclarationError, match="select='value_is_finit' matches no invariant"):
        quick(subject, "value_is_finit")
    with pytest.raises(DeclarationError, match="profile='quik'. Did you mean 'quick'?"):
        tg.check(subject, profile="quik")


def test_an_excuse_for_what_is_never_judged() -> None:
    """An excuse of an invariant that needs a promise which is not made is a wrong declaration."""
    idle = tg.Loss(square, x=X, allow={"padding_is_ignored": "there is none"}, name="idle")
    with pytest.raises(DeclarationError, match="idle excuses 'padding_is_ignored', .* needs mask"):
        quick(idle)
    low = tg.Loss(square, x=X, allow={"low_precision_agrees": "it does not"}, name="low")
    with pytest.raises(DeclarationError, match="it needs another dtype. Drop the excuse."):
        check_excuses_apply(low, CPU)
    elsewhere = tg.Loss(square, x=X, allow={"devices_agree": "they do not"})
    check_excuses_apply(elsewhere, CPU)  # judged on machines that have another device


def test_a_subject_that_cannot_be_observed() -> None:
    """A loss that raises is a SubjectError whose cause is the loss's own exception."""

    def quarrel(x):
        raise RuntimeError("no such luck")

    with pytest.raises(SubjectError, match="it raised RuntimeError: no such luck") as caught:
        quick(tg.Loss(quarrel, x=X))
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_one_item_for_each_configuration() -> None:
    """Per dtype, per low-precision dtype, per device or once, and only what was promised."""
    subject = tg.Loss(square, x=X, dtypes=("float32", "bfloat16"), reduction="sum")
    items = applicable(subject, Settings(), CPU)
    named: dict[str, list[str]] = {}
    for made, config in items:
        named.setdefault(made.name, []).append(str(config))
    assert named["value_is_finite"] == ["cpu-float32", "cpu-bfloat16"]
    assert named["low_precision_agrees"] == ["cpu-bfloat16"]
    assert named["samples_do_not_mix"] == ["cpu"]
    assert not {"devices_agree", "padding_is_ignored"} & named.keys()
    assert "devices_agree" in {
        made.name for made, _ in applicable(subject, Settings(), (*CPU, "x"))
    }


def test_settings_restrict_the_items() -> None:
    """`select`, `ignore` and `dtypes` leave out what they name."""
    subject = tg.Loss(square, x=X, dtypes=("float32", "bfloat16"))
    settings = Settings(select=("loss.gradient_*",), ignore=("*_bounded",), dtypes=("bfloat16",))
    items = {f"{made.name}[{config}]" for made, config in applicable(subject, settings, CPU)}
    assert "gradient_is_finite[cpu-bfloat16]" in items
    assert not any("bounded" in item or "float32" in item for item in items)


def test_what_is_judged_once_is_judged_in_full_precision() -> None:
    """An item of no dtype is observed in the first declared one that is not low."""
    both = tg.Loss(square, x=X, dtypes=("bfloat16", "float64"))
    assert reference_dtype(both) == "float64"
    assert reference_dtype(tg.Loss(square, x=X, dtypes="bfloat16")) == "float32"
    assert observed_as(both, Config("cpu")) == Config("cpu", "float64")


def test_a_subject_is_observed_once() -> None:
    """Invariants of one configuration share the observation."""
    calls = []

    def counted(x):
        calls.append(1)
        return (x**2).sum()

    subject = tg.Loss(counted, x=X)
    observations = Observations(Settings(profile="quick"))
    items = applicable(subject, Settings(select=SWEEP), CPU)
    counts = []
    for made, config in items:
        verdict(subject, made, config, observations)
        counts.append(len(calls))
    assert 0 < counts[0] == counts[1]


def test_the_same_seed_finds_the_same() -> None:
    """Two checks with one seed agree in every number, and another seed draws other points."""

    def told(seed: int) -> str:
        with pytest.raises(tg.Broken) as caught:
            quick(tg.Loss(root, x=X), *SWEEP, seed=seed)
        return str(caught.value)

    assert told(3) == told(3)
    assert told(3) != told(4)  # at least in how many points are like it


def test_the_same_at_several_places_is_said_once() -> None:
    """The first finding stands in full, the others by their places, if they have one."""
    found = [tg.Finding("dead", at=at) for at in ("x[0]", "", "x[1]")] + [tg.Finding("bent")]
    gathered = _merge_findings(found)
    assert [(f.summary, f.at, f.elsewhere) for f in gathered] == [
        ("dead", "x[0]", ("x[1]",)),
        ("bent", "", ()),
    ]


@pytest.mark.parametrize(
    ("elsewhere", "shown"),
    [
        ((), "x[0]"),
        (("x[0]",), "x[0]"),
        (("x[1]", "x[0]", "x[1]"), "x[0] (and x[1])"),
        (("x[1]", "x[2]"), "x[0] (and x[1], x[2])"),
        (("x[1]", "x[2]", "x[3]"), "x[0] (and x[1], x[2] and 1 more)"),
        (("x[1]", "x[2]", "x[3]", "x[4]"), "x[0] (and x[1], x[2] and 2 more)"),
    ],
)
def test_of_many_places_a_few_are_written(elsewhere: tuple[str, ...], shown: str) -> None:
    """Each of them once, and the others by their number."""
    (made,) = [made for made in catalogue("loss") if made.name == "value_is_finite"]
    judged = Verdict(tg.Loss(square, x=X), made, Config(), "broken")
    text = render(tg.Finding("dead", at="x[0]", elsewhere=elsewhere), judged)
    (row,) = [line for line in text.splitlines() if line.startswith("  at ")]
    assert row.removeprefix("  at").strip().split("  ")[0] == shown
