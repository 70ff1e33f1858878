"""What had nothing to judge is counted by reason, the commonest first."""

from trainguard.core.catalogue import find_invariants
from trainguard.judging.verdict import Config, Verdict
from trainguard.report.run_report import judged_text, unjudged_as_rows
from trainguard.subjects.loop import Script

REASONS = {
    "clipping_is_rare": "no gradient was clipped",
    "clipping_takes_effect": "no gradient was clipped",
    "loss_falls": "",
    "rate_follows_schedule": "no learning-rate scheduler was made",
}


def verdicts(reasons: dict[str, str]) -> list[Verdict]:
    """Return what became of some invariants of a script: skipped where there is a reason."""
    script = Script("train.py")
    return [
        Verdict(
            script,
            find_invariants(f"loop.{name}")[0],
            Config(),
            "skipped" if why else "passed",
            reason=why,
        )
        for name, why in reasons.items()
    ]


def test_reasons_are_counted() -> None:
    """Without -v, one row."""
    assert judged_text(verdicts(REASONS)) == "1 invariant judged: 1 passed"
    ((_, text),) = unjudged_as_rows(verdicts(REASONS), by_name=False)
    first, _, second = text.partition("; ")
    assert first == "3 had nothing to judge: no gradient was clipped (2)"
    assert second == "no learning-rate scheduler was made (1)"
    assert list(unjudged_as_rows(verdicts({"loss_falls": ""}), by_name=False)) == []


def test_many_reasons_are_cut() -> None:
    """Four are told, the others counted."""
    names = ["loss_falls", "batches_differ", "data_keeps_up", "nothing_grows", "loss_is_finite"]
    ((_, text),) = unjudged_as_rows(
        verdicts({name: f"reason {row}" for row, name in enumerate(names)}), by_name=False
    )
    assert text == (
        "5 had nothing to judge: reason 0 (1); reason 1 (1); reason 2 (1); reason 3 (1);"
        " and 1 more reason, see -v"
    )


def test_names_are_told_with_v() -> None:
    """With -v, a row for each reason, with the names."""
    assert list(unjudged_as_rows(verdicts(REASONS), by_name=True)) == [
        ("unjudged", "no gradient was clipped: clipping_is_rare, clipping_takes_effect"),
        ("unjudged", "no learning-rate scheduler was made: rate_follows_schedule"),
    ]
