"""
What judging a model costs, in forward and backward passes of the model itself.

All invariants of a causal transformer of ten million parameters, which makes every promise but
compilation, against its own forward + backward on the same batch, in turns and in seconds of the
processor: `python -m benchmarks.models`, or with the name of one profile after it.
"""

import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from time import process_time
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import trainguard as tg
from benchmarks.recorder import Transformer
from benchmarks.report import conditions, row
from trainguard.core.settings import Settings
from trainguard.judging.judge import Observations, applicable, verdict

WORDS, LENGTH, BATCH, TURNS = 512, 64, 4, 3
GRAPH = ("samples", "future")


class Masked(Transformer):
    """The transformer with a mask for padding, and blocks that can be computed again."""

    again = False

    def forward(self, words: Tensor, padding: Tensor | None = None) -> Tensor:
        """Return logits (N, T, words) for words (N, T)."""
        length = words.shape[1]
        future = torch.ones(length, length, dtype=torch.bool, device=words.device).triu(1)
        hidden = self.embed(words)
        for block in self.blocks.layers:
            if self.again:
                hidden = checkpoint(block, hidden, future, padding, use_reentrant=False)
            else:
                hidden = block(hidden, future, padding)
        logits: Tensor = self.head(hidden)
        return logits


def recompute(module: Masked) -> None:
    """Compute the activations of each block again in the backward pass."""
    module.again = True


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Return the mean cross-entropy of logits (N, T, words)."""
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


model = tg.Model(
    Masked,
    inputs={
        "words": tg.integer("B T", 0, WORDS - 1),
        "padding": tg.mask("B T", padding=True),
        "target": tg.integer("B T", 0, WORDS - 1),
    },
    sizes={"B": BATCH, "T": (LENGTH // 4, LENGTH)},
    loss=cross_entropy,
    classes=WORDS,
    initial_range=(-20, 20),
    components={"head.weight": 0},
    causal="T",
    padding="padding",
    longer={"T": 2 * LENGTH},
    checkpoint=recompute,
    dtypes=("float32", "bfloat16"),
)


def trained() -> Callable[[], None]:
    """Return a forward and backward pass of the model, with its loss, in training mode."""
    module = Masked()
    words = torch.randint(0, WORDS, (BATCH, LENGTH))
    target = torch.randint(0, WORDS, (BATCH, LENGTH))

    def step() -> None:
        """Go forward and backward once."""
        module.zero_grad()
        cross_entropy(module(words), target).backward()

    return step


def seconds(step: Callable[[], None], count: int = 9) -> float:
    """Return the median seconds of a pass, the first ones left out."""
    times = []
    for index in range(count + 2):
        started = process_time()
        step()
        if index > 1:
            times.append(process_time() - started)
    return statistics.median(times)


def judged(profile: str) -> Counter[str]:
    """Judge everything, and return the seconds that went into each probe."""
    settings = Settings(profile=profile)
    observations, spent = Observations(settings), Counter[str]()
    for invariant, config in applicable(model, settings, ("cpu",)):
        started = process_time()
        found = verdict(model, invariant, config, observations)
        spent[invariant.probe] += process_time() - started
        if found.outcome != "passed":
            raise RuntimeError(f"{invariant.name} on {config}: {found.outcome}. {found.text}")
    return spent


@contextmanager
def backwards() -> Iterator[list[int]]:
    """Count the backward passes in a block, however they are asked for."""
    counted = [0]

    def counting(run: Callable[..., object]) -> Callable[..., object]:
        """Return the function, and a count of its calls."""

        def call(*args: object, **options: object) -> object:
            """Count a backward pass, and make it."""
            counted[0] += 1
            return run(*args, **options)

        return call

    with ExitStack() as stack:
        for name in ("grad", "backward"):
            run = getattr(torch.autograd, name)
            stack.enter_context(patch.object(torch.autograd, name, counting(run)))
        yield counted


def passes(probe: str) -> int:
    """Return how many backward passes one probe makes in one case."""
    observations = Observations(Settings(profile="quick"))
    ((invariant, config),) = (
        pair for pair in applicable(model, Settings(), ("cpu",)) if pair[0].probe == probe
    )
    with backwards() as counted:
        verdict(model, invariant, config, observations)
    return counted[0]


def cost(profile: str) -> None:
    """Print what all probes cost, and each by itself, in passes of the model."""
    step = trained()
    turns = []
    for _ in range(TURNS):
        before = seconds(step)
        spent = judged(profile)
        turns.append((spent, (before + seconds(step)) / 2))
    ratios = [spent.total() / plain for spent, plain in turns]
    row("forward + backward, ms", f"{1e3 * statistics.median(plain for _, plain in turns):.0f}")
    row(
        f"all invariants, profile {profile}, in passes",
        f"{statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})",
    )
    for probe in turns[0][0]:
        each = statistics.median(spent[probe] / plain for spent, plain in turns)
        row(f"of these, {probe}", f"{each:.1f}")


def main() -> None:
    """Print all figures."""
    torch.set_num_threads(1)
    print(conditions())
    row("parameters", f"{sum(p.numel() for p in Transformer().parameters()):,}")
    for probe in GRAPH:
        row(f"backward passes of the probe {probe} (1)", str(passes(probe)))
    for profile in sys.argv[1:] or ("quick", "ci"):
        cost(profile)


if __name__ == "__main__":
    main()
