"""
Whether a small exploding region is found, how often and how fast, under the profile `ci`.

The planted bug: a loss of three inputs whose gradient explodes in a region that holds 3e-5 of the
declared box. Ten seeds; found means that `gradient_is_bounded` breaks. Run
`python -m benchmarks.power`.
"""

from time import perf_counter

import torch
from torch import Tensor

import trainguard as tg
from benchmarks.report import conditions, row
from trainguard.core.settings import Settings
from trainguard.invariants.loss.sweep import gradient_is_bounded
from trainguard.observe.loss.observer import observe

SEEDS, SIDE = 10, 3e-5 ** (1 / 3)


def planted(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Return a plain quadratic, with a spike inside a small cube somewhere in the box."""
    inside = ((a - 0.21).abs() < SIDE) & ((b + 0.43).abs() < SIDE) & ((c - 0.67).abs() < SIDE)
    return torch.where(inside, 1e6 * (a + b + c), a**2 + b**2 + c**2).mean()


loss = tg.Loss(planted, a=tg.real("B", -1, 1), b=tg.real("B", -1, 1), c=tg.real("B", -1, 1))


def found_after(seed: int) -> float | None:
    """Return the seconds until the explosion was seen, or None where it was not."""
    started = perf_counter()
    trace = observe(loss, "cpu", "float32", Settings(seed=seed)).trace("sweep")
    seconds = perf_counter() - started
    return seconds if any(gradient_is_bounded(trace)) else None


def measure() -> float:
    """Return the share of the box that the region holds, by ten million draws."""
    points = torch.rand(10_000_000, 3, generator=torch.Generator().manual_seed(0)) * 2 - 1
    centre = torch.tensor([0.21, -0.43, 0.67])
    return float(((points - centre).abs() < SIDE).all(1).float().mean())


def main() -> None:
    """Print how many seeds found the region, and the slowest of them."""
    found_after(0)  # warm up
    seconds = [found_after(seed) for seed in range(SEEDS)]
    hits = [taken for taken in seconds if taken is not None]
    print(conditions())
    row("share of the box that explodes (3e-5)", f"{measure():.1e}")
    row("found, of ten seeds (10)", f"{len(hits)}")
    row("slowest whole sweep, seconds (under 1)", f"{max(hits):.2f}")


if __name__ == "__main__":
    main()
