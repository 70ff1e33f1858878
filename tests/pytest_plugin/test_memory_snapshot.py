"""`memory_matches_snapshot`: what a step took when it was blessed, in a file beside it."""

import json

# pytester forgets these, and torch comes once only.
import trainguard.observe.memory.observer
import trainguard.observe.memory.snapshot
import trainguard.observe.model.observer
import trainguard.pytest_plugin.session  # noqa: F401

GUARD = """
from torch import nn
import trainguard as tg

budget = tg.Budget(snapshot="10 %", at={{"B": 64}})
head = tg.Model(lambda: nn.Linear(64, {outputs}), input=tg.real("B 64", -1, 1), budget=budget)
"""
OTHER = "\ndef test_other(snapshot):\n    assert {'kept': 'by syrupy'} == snapshot\n"
FILE = "__snapshots__/guard_head/head.memory_matches_snapshot[cuda-float32].memory"


def run(pytester, outputs=64, *options, more=""):
    """Judge a head of so many outputs."""
    pytester.makepyfile(guard_head=GUARD.format(outputs=outputs) + more)
    select = "--trainguard-select=memory.memory_matches_snapshot"
    return pytester.runpytest_inprocess("--trainguard", select, *options)


def test_a_step_is_blessed_and_held_to_it(pytester) -> None:
    """It fails without a snapshot and passes once it is blessed."""
    missing = run(pytester)
    missing.assert_outcomes(failed=1)
    missing.stdout.fnmatch_lines(
        [
            "memory_matches_snapshot: a training step of `head` has no snapshot to be held against",
            "  measured  no such file",
            f"  allowed   {FILE.replace('[', '[[]')}",
            "  why       bless it: pytest --trainguard --snapshot-update *",
        ]
    )
    run(pytester, 64, "--snapshot-update").assert_outcomes(passed=1)
    kept = json.loads((pytester.path / FILE).read_text(encoding="utf-8"))
    assert kept["sizes"] == {"B": 64}
    assert kept["how"] == "predicted for cuda on fake tensors"
    run(pytester, 64).assert_outcomes(passed=1)


def test_a_step_that_grew(pytester) -> None:
    """Up to the share, and down to anything, it passes; above it, it fails."""
    run(pytester, 64, "--snapshot-update")
    run(pytester, 66).assert_outcomes(passed=1)
    run(pytester, 32).assert_outcomes(passed=1)
    grown = run(pytester, 128)
    grown.assert_outcomes(failed=1)
    grown.stdout.fnmatch_lines(
        [
            "*: a training step of `head` takes more memory than its snapshot",
            "  measured  * KiB, * % more, predicted for cuda on fake tensors",
            "  allowed   * KiB and 10.0 % more, in*",
            "  why       at the peak: * more, * more, *",
        ]
    )


def test_a_snapshot_of_another_step(pytester) -> None:
    """Other sizes cannot be compared, and what is no snapshot is said to be none."""
    run(pytester, 64, "--snapshot-update")
    file = pytester.path / FILE
    kept = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**kept, "sizes": {"B": 8}}), encoding="utf-8")
    run(pytester).stdout.fnmatch_lines(["  measured  it was blessed for B=8, and this is B=64"])
    file.write_text("{", encoding="utf-8")
    run(pytester).stdout.fnmatch_lines(["  measured  no snapshot can be read from it"])


def test_a_place_that_cannot_be_used(pytester) -> None:
    """A folder is no snapshot and cannot be written; neither is any other JSON."""
    (pytester.path / FILE).mkdir(parents=True)
    run(pytester, 64, "--snapshot-update").stdout.fnmatch_lines(["*could not be written:*"])
    (pytester.path / FILE).rmdir()
    for odd in ('"peak": 7, "categories": 3', '"peak": true, "categories": {}', '"peak": 1e400'):
        (pytester.path / FILE).write_text("{" + odd + ', "sizes": {}, "how": ""}')
        result = run(pytester, 64)
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["*no snapshot can be read from it*"])


def test_it_lives_beside_other_snapshots(pytester) -> None:
    """syrupy, told to update, neither takes the file for one without an owner nor counts it."""
    run(pytester, 64, "--snapshot-update", more=OTHER)
    pytester.makepyfile(test_plain=OTHER)
    result = pytester.runpytest_inprocess("--snapshot-update", "test_plain.py")
    assert (pytester.path / FILE).is_file()
    result.stdout.no_fnmatch_line("*deleted*")
    result.stdout.no_fnmatch_line("*unused*")
