"""The fixture `guard`: a training recorded and judged inside an ordinary test."""

import pytest

import trainguard.observe.loop.recorder  # noqa: F401 pytester forgets it, and torch comes once only

HEAD = """
import pytest
import torch
from torch import nn
import trainguard as tg

def train(zero=True, steps=30, clip=None):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    features = torch.randn(64, 8)
    for _ in range(steps):
        if zero:
            optimizer.zero_grad()
        nn.functional.mse_loss(net(features), features.sum(1, keepdim=True)).backward()
        if clip:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimizer.step()
"""
BROKEN = "gradients_start_empty: `test_train` steps with gradients that the last step had already*"
both_ways = pytest.mark.parametrize("options", [(), ("--trainguard",)], ids=["plain", "judging"])


def run(pytester, body, *options):
    """Run pytest on a module of tests."""
    pytester.makepyfile(HEAD + body)
    return pytester.runpytest_inprocess("-p", "no:randomly", *options)


@both_ways
def test_a_healthy_training(pytester, options) -> None:
    """It passes, with or without --trainguard, and what was seen can be looked at."""
    body = """
def test_train(guard):
    with guard.record("mlp") as seen:
        train()
    assert seen.trace.subject == "mlp"
    assert seen.trace.conditions["steps"] == 30
    assert {judged.outcome for judged in seen.verdicts} == {"passed", "skipped"}
    assert seen.findings == ()
"""
    run(pytester, body, *options).assert_outcomes(passed=1)


@both_ways
def test_a_broken_training(pytester, options) -> None:
    """The test fails with exactly the report: no traceback, and a command that works."""
    body = """
def test_train(guard):
    with guard.record():
        train(zero=False)
"""
    result = run(pytester, body, *options)
    result.assert_outcomes(failed=1)
    lines = result.outlines
    start = next(row for row, line in enumerate(lines) if "_ test_train _" in line)
    pytest.LineMatcher(lines[start + 1 :]).fnmatch_lines(
        [
            BROKEN,
            "  at        step 1, * test_a_broken_training.py:17",
            "  measured  *",
            "  allowed   *",
            "  why       *",
            "            *",
            "  rerun     pytest test_a_broken_training.py::test_train",
            '  silence   guard.record(..., allow={"gradients_start_empty": "<reason>"})',
            "  read      trainguard explain gradients_start_empty",
            "=*",
        ],
        consecutive=True,
    )
    said = f" - {BROKEN[:30]}*" if pytest.version_tuple >= (9,) else ""  # in pytest 8 no more
    result.stdout.fnmatch_lines(f"FAILED *::test_train{said}")
    result.stdout.no_fnmatch_line("*Error*")


def test_the_report_in_junit(pytester) -> None:
    """What reads JUnit XML is told the same."""
    body = "def test_train(guard):\n    with guard.record():\n        train(zero=False)\n"
    run(pytester, body, "--junitxml=out.xml")
    written = (pytester.path / "out.xml").read_text(encoding="utf-8")
    assert ">gradients_start_empty: `test_train` steps with gradients" in written
    assert "recording.py" not in written


@both_ways
def test_a_skip_of_the_users_own_stays_where_it_is(pytester, options) -> None:
    """The line that skips is told, not that of the function."""
    body = "def test_train(guard):\n    with guard.record():\n        train()\n"
    result = run(pytester, f"import pytest\n{body}    pytest.skip('late')\n", "-rs", *options)
    source = (pytester.path / "test_a_skip_of_the_users_own_stays_where_it_is.py").read_text()
    line = next(n for n, text in enumerate(source.splitlines(), 1) if "pytest.skip" in text)
    result.stdout.fnmatch_lines(f"SKIPPED * test_a_skip_of_the_users_own_stays*.py:{line}: late")


def test_with_workers(pytester) -> None:
    """Under pytest-xdist the report comes across as it is."""
    body = "def test_train(guard):\n    with guard.record():\n        train(zero=False)\n"
    pytester.makepyfile(HEAD + body)
    result = pytester.runpytest_subprocess("-n", "1", "--trainguard")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([BROKEN, "1 subject, * passed, 1 broken, * skipped"])
    result.stdout.no_fnmatch_line("*Error*")


def test_an_excuse(pytester) -> None:
    """What is excused passes; an excuse for what holds fails; an unknown one is refused."""
    body = """
def test_excused(guard):
    with guard.record(allow={"gradients_start_empty": "summed on purpose"}):
        train(zero=False)

def test_stale(guard):
    with guard.record(allow={"gradients_start_empty": "once"}):
        train()

def test_unknown(guard):
    with pytest.raises(tg.DeclarationError, match="Did you mean 'gradients_start_empty'?"):
        guard.record(allow={"gradients_start_empt": "typed in haste"})
"""
    result = run(pytester, body)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "gradients_start_empty: `test_stale` is excused and does not break it",
            '  why       the excuse "once" is stale',
        ]
    )


def test_a_block_that_raises(pytester) -> None:
    """Its own exception is what is shown, with its traceback; nothing is judged."""
    body = """
def test_raises(guard):
    with guard.record():
        train(zero=False)
        raise LookupError("mine")

def test_skips(guard):
    with guard.record():
        train(zero=False)
        pytest.skip("not today")
"""
    result = run(pytester, body)
    result.assert_outcomes(failed=1, skipped=1)
    result.stdout.fnmatch_lines(['>           raise LookupError("mine")', "E*LookupError: mine"])
    result.stdout.no_fnmatch_line("*gradients_start_empty*")
    result.stdout.no_fnmatch_line("*trainguard/*")


def test_a_block_that_trains_nothing(pytester) -> None:
    """It would pass everything, so it fails, in two sentences."""
    body = "def test_train(guard):\n    with guard.record('idle'):\n        pass\n"
    result = run(pytester, body)
    result.assert_outcomes(failed=1)
    sentence = "`idle` made no training step, so that there is nothing to judge."
    row = result.outlines.index(sentence)
    assert "_ test_train _" in result.outlines[row - 1]
    assert result.outlines[row + 1] == "Steps in processes that it starts are not seen."


def test_steps(pytester) -> None:
    """The block is left after so many steps, and then judged."""
    body = """
def test_train(guard):
    with guard.record(steps=5) as seen:
        train(steps=10**9)
    assert seen.trace.conditions["steps"] == 5

def test_broken(guard):
    with guard.record(steps=12):
        train(zero=False, steps=10**9)
"""
    run(pytester, body).assert_outcomes(passed=1, failed=1)


def test_promises(pytester) -> None:
    """What is promised is judged; what cannot be promised is refused by its name."""
    body = """
def test_falls(guard):
    with guard.record(falls=0.9999):
        train()

def test_typo(guard):
    with pytest.raises(tg.DeclarationError, match=r"^guard.record has no option 'fals'"):
        guard.record(fals=0.5)

def test_value(guard):
    with pytest.raises(tg.DeclarationError, match=r"^guard.record\\(falls=2\\) cannot be. Give"):
        guard.record(falls=2)
"""
    result = run(pytester, body)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines("loss_falls: *")


def test_the_settings_of_the_run(pytester) -> None:
    """`--trainguard-ignore` and `--trainguard-strict` hold for recordings too."""
    body = """
def test_left_over(guard):
    with guard.record():
        train(zero=False)

def test_clipped(guard):
    with guard.record():
        train(clip=0.01)
"""
    ignore = "--trainguard-ignore=gradients_start_empty"
    run(pytester, body, ignore).assert_outcomes(passed=2)
    result = run(pytester, body, ignore, "--trainguard-strict")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines("clipping_is_rare: *")


def test_the_closing_section(pytester) -> None:
    """With --trainguard, recordings are counted beside what is declared, and their notes told."""
    body = """
def test_two(guard):
    with guard.record("one"):
        train(clip=0.01)
    with guard.record("two"):
        train()

schedule = tg.Schedule(lambda step: 1e-3)
"""
    result = run(pytester, body, "--trainguard", "--trainguard-profile=quick")
    result.stdout.fnmatch_lines(["3 subjects, * passed, * skipped", "  note      clipping_is_*"])
    assert result.parseoutcomes()["passed"] > 5


def test_broken_outside_of_the_fixture(pytester) -> None:
    """`tg.record` and its check in a test fail with exactly the report too."""
    body = """
def test_train():
    with tg.record() as seen:
        train(zero=False)
    seen.check()
"""
    result = run(pytester, body)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [BROKEN, '  silence   .check(allow={"gradients_start_empty": "<reason>"})']
    )
    result.stdout.no_fnmatch_line("*Error*")


def test_an_ordinary_failure_is_left_alone(pytester) -> None:
    """A test that fails by itself shows what it always shows, though it has recorded."""
    body = """
def test_train(guard):
    with guard.record():
        train()
    assert 1 == 2
"""
    run(pytester, body).stdout.fnmatch_lines([">   *assert 1 == 2", "E   *assert 1 == 2"])


def test_a_fixture_of_the_same_name(pytester) -> None:
    """A team's own fixture called `guard` goes before ours."""
    body = """
@pytest.fixture
def guard():
    return "mine"

def test_mine(guard):
    assert guard == "mine"
"""
    run(pytester, body).assert_outcomes(passed=1)


def test_what_would_have_been(pytester) -> None:
    """guard.what_if() declares a relation of the recordings that follow it."""
    body = """
def turn_round(batch):
    return [tensor.flip(0) for tensor in batch]

def test_train(guard):
    guard.what_if(turn_round, lambda before, after: torch.equal(before.output, after.output))
    guard.what_if(turn_round, lambda before, after: before.output.shape == after.output.shape,
                  name="shapes")
    with guard.record():
        train()
"""
    result = run(pytester, body)
    result.assert_outcomes(failed=1)
    told = "relations_hold: the relation 'turn_round' of `test_train` is broken"
    assert [line for line in result.outlines if line.startswith("relations_hold")] == [told]
    assert "  measured  then(before, after) is false" in result.outlines
