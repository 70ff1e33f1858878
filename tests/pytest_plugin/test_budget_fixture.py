"""`guard.budget()` and the marker `memory_budget`: ordinary tests held to what they may hold."""

import pytest

# pytester forgets these, and torch comes once only.
import trainguard.observe.memory.block_meter
import trainguard.pytest_plugin.session  # noqa: F401

HEAD = """
import pytest
import torch
from torch import nn
import trainguard as tg

def train(width=64, steps=2):
    net = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(steps):
        net(torch.randn(256, width)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
both_ways = pytest.mark.parametrize("options", [(), ("--trainguard",)], ids=["plain", "judging"])
BROKEN = "peak_is_within_budget: the body of `test_train` takes more memory than its budget"


def run(pytester, body, *options):
    """Run pytest on a module of tests."""
    pytester.makepyfile(HEAD + body)
    return pytester.runpytest_inprocess("-p", "no:randomly", *options)


@both_ways
def test_within_the_budget(pytester, options) -> None:
    """What fits passes, in a block and as a whole test, with or without --trainguard."""
    body = """
def test_block(guard):
    with guard.budget(peak="1 MiB", parameters="17 KiB") as seen:
        train()
    assert seen.trace.subject == "test_block"

@pytest.mark.memory_budget(peak="1 MiB")
@pytest.mark.parametrize("width", [32, 64])
def test_whole(width):
    train(width)
"""
    run(pytester, body, *options).assert_outcomes(passed=3)


@both_ways
@pytest.mark.parametrize(
    "body",
    [
        "def test_train(guard):\n    with guard.budget(peak='150 KiB'):\n        train()\n",
        "@pytest.mark.memory_budget(peak='150 KiB')\ndef test_train():\n    train()\n",
    ],
    ids=["block", "marker"],
)
def test_above_the_budget(pytester, body, options) -> None:
    """The test fails with exactly the report: no traceback, a command that works, the line."""
    result = run(pytester, body, *options)
    result.assert_outcomes(failed=1)
    lines = result.outlines
    start = next(row for row, line in enumerate(lines) if "_ test_train _" in line)
    pytest.LineMatcher(lines[start + 1 :]).fnmatch_lines(
        [
            BROKEN,
            "  at        *, step 1 * test_above_the_budget.py:1*",
            "  measured  * KiB, measured on cpu",
            "  allowed   150.00 KiB, the budget's peak",
            "  why       at the peak: *",
            "  rerun     pytest test_above_the_budget.py::test_train",
            '  silence   *budget(..., allow={"peak_is_within_budget": "<reason>"})',
            "  read      trainguard explain peak_is_within_budget",
            "=*",
        ],
        consecutive=True,
    )
    result.stdout.no_fnmatch_line("*Error*")


def test_categories_are_known(pytester) -> None:
    """Parameters, gradients, state, inputs and activations are told apart, to the byte."""
    body = """
def test_train(guard):
    with guard.budget(peak="1 MiB") as seen:
        train()
    kept = {e.place: e.measured for e in seen.trace if e.quantity == "category"}
    parameters = 4 * (64 * 64 + 64 + 64 + 1)
    assert kept["parameters"] == kept["gradients"] == parameters
    assert kept["optimizer"] == 2 * parameters + 4 * 4
    assert kept["inputs"] == 4 * 256 * 64
    # What tanh returns, which the layer after it keeps too, and what the square is taken of.
    assert kept["activations"] == 4 * 256 * 64 + 4 * 256
"""
    run(pytester, body).assert_outcomes(passed=1)


def test_with_workers(pytester) -> None:
    """Under pytest-xdist the report comes across as it is."""
    body = "@pytest.mark.memory_budget(peak='150 KiB')\ndef test_train():\n    train()\n"
    pytester.makepyfile(HEAD + body)
    result = pytester.runpytest_subprocess("-n", "1")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([BROKEN, "  measured  * KiB, measured on cpu"])


def test_an_excuse(pytester) -> None:
    """What is excused passes; an excuse for what holds fails."""
    body = """
@pytest.mark.memory_budget(peak="1 KiB", allow={"peak_is_within_budget": "ticket 7"})
def test_excused():
    train()

@pytest.mark.memory_budget(peak="1 GiB", allow={"peak_is_within_budget": "ticket 7"})
def test_stale():
    train()
"""
    result = run(pytester, body)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*`test_stale` is excused and does not break it"])


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("peak='24 gigs'", "*: peak='24 gigs' has no unit of memory. Did you mean 'GiB'[?]"),
        ("peak=0", "*memory_budget: peak=0 cannot be kept. Give an amount of at least 1 B."),
        ("peek=1", "*has no limit 'peek'. Did you mean 'peak'[?]"),
        ("", "*memory_budget() allows anything. Write *(peak='300 MiB')."),
        ("'1 MiB'", "*memory_budget('1 MiB') names no limit. Write *(peak='300 MiB')."),
        ("peak=9, allow={'peak_is': 'x'}", "allow={'peak_is': ...} names no memory invariant. *"),
    ],
)
def test_a_marker_that_cannot_be_meant(pytester, given, told) -> None:
    """The test fails with the sentence alone."""
    body = f"@pytest.mark.memory_budget({given})\ndef test_train():\n    train()\n"
    result = run(pytester, body)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([told])
    result.stdout.no_fnmatch_line("*Traceback*")


def test_nothing_is_allocated(pytester) -> None:
    """A test without tensors would keep any budget, so that it fails."""
    body = "@pytest.mark.memory_budget(peak='1 MiB')\ndef test_train():\n    pass\n"
    result = run(pytester, body)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["`test_train` allocates no tensor, so that there is nothing *"])


def test_running_out_of_memory(pytester) -> None:
    """It is told as a finding with what was held by then; any other exception stays as it is."""
    body = """
@pytest.mark.memory_budget(peak="1 MiB")
def test_train():
    kept = torch.zeros(1024)
    torch.empty(1 << 50)

@pytest.mark.memory_budget(peak="1 KiB")
def test_other():
    torch.zeros(1024)
    raise ZeroDivisionError("its own")
"""
    result = run(pytester, body)
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            "peak_is_within_budget: the body of `test_train` runs out of memory",
            "  measured  at least 4,096.00 TiB *",
            "  why       it was refused 4,096.00 TiB more while it held 4.00 KiB; at the peak: *",
            "*ZeroDivisionError: its own",
        ]
    )
