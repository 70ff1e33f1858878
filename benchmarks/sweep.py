"""
How many points a second the sweep explores, against Hypothesis and against the raw limit.

The loss is the reference mixture of logistics with four components. All three are measured in
turns in one run, on one thread, and the ratios are paired: run `python -m benchmarks.sweep`.
"""

import statistics
from collections.abc import Callable
from time import perf_counter

import hypothesis
import torch
from hypothesis import strategies as st

from benchmarks.report import conditions, row
from fixtures.healthy.loss.guard_mixture_of_logistics import mono_8_bits as loss
from trainguard.observe.loss.batching import evaluator
from trainguard.observe.loss.evaluate import Evaluator
from trainguard.observe.loss.probes import sweep
from trainguard.observe.loss.search import Effort, explore
from trainguard.observe.tools.points import draw
from trainguard.observe.tools.structure import Structure

COMPONENTS, ROUNDS, TURNS, EXAMPLES = 4, 16, 5, 200


def by_hypothesis(made: Evaluator) -> float:
    """Return the points a second of one drawn point per example, as a user would write it."""

    def floats(low: float, high: float) -> st.SearchStrategy[list[float]]:
        return st.lists(st.floats(low, high, width=32), min_size=COMPONENTS, max_size=COMPONENTS)

    @hypothesis.settings(max_examples=EXAMPLES, database=None, deadline=None)
    @hypothesis.given(floats(-20, 20), floats(-1.5, 1.5), floats(-12, 6), st.integers(0, 255))
    def example(logits: list[float], means: list[float], scales: list[float], level: int) -> None:
        drawn = (logits, means, scales)
        inputs = [torch.tensor([[values]], requires_grad=True) for values in drawn]
        value = made.component.function(*inputs, torch.tensor([[2 * level / 255 - 1]]))
        value.backward()
        assert all(t.grad is not None and t.grad.isfinite().all() for t in inputs)

    return EXAMPLES / _seconds(example)


def by_sweep(made: Evaluator) -> float:
    """Return the points a second of the sweep: drawing, evaluating, reducing and closing in."""
    generator = torch.Generator().manual_seed(0)
    effort = Effort(structures=1, rounds=ROUNDS)
    return ROUNDS * made.batch / _seconds(lambda: explore(sweep, made, 0, effort, generator))


def by_hand(made: Evaluator) -> float:
    """Return the points a second of nothing but forward and backward on batches as large."""
    points = draw(made.box, made.batch, torch.Generator().manual_seed(0))
    inputs = [t[:, 0].clone().requires_grad_(t.is_floating_point()) for t in points.values()]

    def forward_and_backward() -> None:
        for _ in range(ROUNDS):
            torch.autograd.grad(made.component.function(*inputs) * made.batch, inputs[:3])

    return ROUNDS * made.batch / _seconds(forward_and_backward)


def main() -> None:
    """Measure the three in turns and print their medians and paired ratios."""
    torch.set_num_threads(1)
    made = evaluator(loss, Structure({"B": 1, "T": 1, "K": COMPONENTS}), "cpu", torch.float32)
    by_sweep(made), by_hand(made)  # warm up
    turns = [(by_sweep(made), by_hand(made), by_hypothesis(made)) for _ in range(TURNS)]
    ours, raw, drawn = (statistics.median(column) for column in zip(*turns, strict=True))
    print(conditions())
    row("sweep, points/s", f"{ours:,.0f}")
    row("raw forward + backward, points/s", f"{raw:,.0f}")
    row("Hypothesis, one point an example, points/s", f"{drawn:,.0f}")
    row("sweep / Hypothesis (at least 1,000)",
        f"{statistics.median(a / c for a, _, c in turns):,.0f}")  # fmt: skip
    row("sweep / raw (at least 0.50)", f"{statistics.median(a / b for a, b, _ in turns):.2f}")


def _seconds(work: Callable[[], object]) -> float:
    """Return how long a piece of work takes."""
    started = perf_counter()
    work()
    return perf_counter() - started


if __name__ == "__main__":
    main()
