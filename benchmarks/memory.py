"""
How near predicted memory comes to real memory, and what a prediction costs.

Each network is trained for two steps on fake tensors and for two on real ones, whose peak is what
torch's profiler counts of the cpu's allocations, the building of the network included:
`python -m benchmarks.memory`, or with the name of one part after it (near, large, cost, budget).
"""

import resource
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import product
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from benchmarks.networks import SaShiMi, Transformer, UNet, ViT
from benchmarks.report import conditions, row
from fixtures.broken.memory import guard_sashimi_kernel_written_out as audio
from fixtures.healthy.model import guard_sashimi_checkpointed as audio_parts
from trainguard.core.settings import Settings
from trainguard.observe.memory.allocation_log import AllocationLog
from trainguard.observe.memory.declared_step import DeclaredStep
from trainguard.observe.memory.predict import predict_step
from trainguard.observe.memory.training import Training, train
from trainguard.observe.model.model_case import backward
from trainguard.observe.tools.child_process import call_in_child
from trainguard.observe.tools.isolation import isolate
from trainguard.subjects.units import format_bytes

OPTIMIZERS = {
    "AdamW": torch.optim.AdamW,
    "SGD": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "foreach": partial(torch.optim.AdamW, foreach=True),
    "fused": partial(torch.optim.AdamW, fused=True),
}
TURNS = 5


def next_word(logits: Tensor, tokens: Tensor) -> Tensor:
    """Return the cross-entropy of a language model."""
    return F.cross_entropy(logits.float().flatten(0, 1), tokens.flatten())


def restored(made: Tensor, images: Tensor) -> Tensor:
    """Return the squared error of an image."""
    return F.mse_loss(made.float(), images)


def classified(logits: Tensor, images: Tensor) -> Tensor:
    """Return the cross-entropy of a classifier, all of one class."""
    return F.cross_entropy(logits.float(), torch.zeros(len(images), dtype=torch.long))


def likely(output: dict[str, Tensor], codes: Tensor) -> Tensor:
    """Return the mean negative log-likelihood of codes."""
    return audio_parts.dml_nll(output, codes)


def tokens(length: int, batch: int = 4) -> Tensor:
    """Return a batch of tokens."""
    return torch.zeros(batch, length, dtype=torch.long)


NETWORKS: dict[str, tuple[Any, Any, Any]] = {
    "GPT": (Transformer, partial(tokens, 128), next_word),
    "U-Net": (UNet, partial(torch.zeros, 4, 3, 64, 64), restored),
    "ViT": (ViT, partial(torch.zeros, 8, 3, 64, 64), classified),
    "SaShiMi": (SaShiMi, partial(tokens, 1024, 1), likely),
}

LIMIT = 23.69 * 2**30  # bytes of the device on which the audio model of the post-mortem failed
# What its authors thought of, and what a step takes with it: sizes, optimizer, dtype, how it is
# made. All that is not said is as it was.
MEASURES: dict[str, dict[str, Any]] = {
    "as it was": {},
    "AdamW, one parameter at a time": {"using": partial(torch.optim.AdamW, foreach=False)},
    "AdamW, fused": {"using": partial(torch.optim.AdamW, fused=True)},
    "TF32": {"tf32": True},
    "bfloat16 autocast": {"dtype": "bfloat16"},
    "4 mixtures instead of 6": {"mixtures": 4},
    "6 layers instead of 8": {"at": {"layers": 6}},
    "width 48 instead of 64": {"at": {"width": 48}},
    "half the length": {"at": {"T": 12288}},
    "checkpointing of every layer": {"checkpointed": True},
    "checkpointing, a batch of 2": {"checkpointed": True, "at": {"B": 2}},
    "checkpointing, 2 batches of 1 accumulated": {"checkpointed": True, "batches": 2},
}
CONTEXT = 2 * 2**30  # bytes that the context of CUDA and fragmentation take, at the most
SMALL = {"T": 64, "layers": 1, "states": 8}  # where only the way is tried


def training(name: str, again: bool, low: bool, optimizer: str, foreach: bool = False) -> Training:
    """Return the training of a network, as one of the rows has it."""
    network, feed, criterion = NETWORKS[name]

    def build() -> nn.Module:
        """Build the network."""
        made: Any = network()
        made.again = again
        return made

    def loss(module: nn.Module, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss under autocast, and the output that a loop still holds."""
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            output = module(batch)
            return criterion(output, batch), output

    return Training(build, feed, loss, OPTIMIZERS[optimizer], foreach=foreach)


@contextmanager
def measure(name: str, device: str = "cpu", **sizes: int) -> Iterator[Callable[[], Training]]:
    """Yield what makes the step of the audio model with one of the measures, and its flags set."""
    how = MEASURES[name]
    at = {**audio.model.memory_budget.at, **how.get("at", {}), **sizes}
    budget = replace(audio.model.memory_budget, using=how.get("using"))
    step = DeclaredStep(audio.model, budget, device, how.get("dtype", "float32"), Settings(), at)
    precision, mixtures = torch.get_float32_matmul_precision(), audio_parts.COMPONENTS
    torch.set_float32_matmul_precision("high" if how.get("tf32") else precision)
    audio_parts.COMPONENTS = how.get("mixtures", mixtures)
    try:
        yield lambda: _altered(step.training(), how)
    finally:
        torch.set_float32_matmul_precision(precision)
        audio_parts.COMPONENTS = mixtures


def _altered(made: Training, how: dict[str, Any]) -> Training:
    """Return a step that checkpoints its layers and goes back for several batches, where asked."""

    def build() -> nn.Module:
        """Build the model."""
        module: Any = made.build()
        module.recompute = how.get("checkpointed", False)
        return module  # type: ignore[no-any-return]

    def loss(module: nn.Module, inputs: Any) -> tuple[Tensor, Any]:
        """Go back for all batches but the last, and return the loss of that."""
        for _ in range(how.get("batches", 1) - 1):
            backward(made.loss(module, inputs)[0])
        return made.loss(module, inputs)

    return replace(made, build=build, loss=loss)


def budget() -> None:
    """Print what each measure saves of the step that did not fit, all of it predicted."""
    whole = 0
    for name in MEASURES:
        with measure(name) as step:
            peak = predict_step(step, "cuda").timeline.peak().total
        whole = whole or peak
        saved = f"{format_bytes(whole - peak)} less, " if peak < whole else ""
        saved = f"{format_bytes(peak - whole)} more, " if peak > whole else saved
        left = "fits" if peak + CONTEXT < LIMIT else "does not fit"
        row(f"{name}: predicted", f"{format_bytes(peak)}, {saved or 'the same, '}{left}")


class Unwatched(AllocationLog):
    """A ledger that is never entered: for steps that are measured by something else."""

    def enter_all(self, tensors: Any, category: str) -> None:
        """Follow nothing."""


def real_peak(made: Training) -> int:
    """Return the bytes at the highest moment of real steps, by torch's own profiler."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        train(made, Unwatched())
    held = most = 0
    for event in profiled.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most


def near() -> None:
    """Print how far predictions are from real peaks."""
    for name, again, low in product(NETWORKS, (False, True), (False, True)):
        off = {}
        for optimizer in OPTIMIZERS:
            made = training(name, again, low, optimizer)
            peak = predict_step(lambda made=made: made, "cpu").timeline.peak(0).total
            off[optimizer] = 100 * (peak / real_peak(made) - 1)
        how = ", ".join(["bfloat16" if low else "float32", *(["checkpointing"] if again else [])])
        errors = ", ".join(f"{optimizer} {error:+.2f}" for optimizer, error in off.items())
        row(f"{name}, {how}: percent off", f"{errors}")


def large() -> None:
    """Print what the prediction of eight billion parameters takes."""
    sizes = {"width": 4096, "layers": 39, "heads": 32, "words": 32000}

    def loss(module: nn.Module, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss in bfloat16."""
        with torch.autocast("cpu", torch.bfloat16):
            logits = module(batch)
            return next_word(logits, batch), logits

    built = partial(Transformer, **sizes)
    made = Training(built, partial(tokens, 2048, 1), loss, OPTIMIZERS["AdamW"])
    started = perf_counter()
    peak = predict_step(lambda: made, "cuda").timeline.peak()
    seconds = perf_counter() - started
    host = 1024 * max(
        resource.getrusage(who).ru_maxrss
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    count = peak.categories["parameters"] / 4 / 1e9
    parts = ", ".join(
        f"{name} {format_bytes(size)}" for name, size in peak.categories.most_common(4)
    )
    row(f"{count:.2f} billion parameters, length 2048: predicted peak", format_bytes(peak.total))
    row("made up of", parts)
    row("seconds of the prediction (under 20)", f"{seconds:.1f}")
    row("host memory of its process (under 2 GiB)", format_bytes(host))


def cost() -> None:
    """
    Print the time of predictions in that of the same steps made for real.

    A prediction is made in a process of its own, and held against steps that are made in one too,
    and against steps of a process that has made them before.
    """
    for name, low in product(NETWORKS, (False, True)):
        made = training(name, False, low, "AdamW", foreach=True)

        def real(made: Training = made) -> None:
            """Make the steps on real tensors."""
            train(made, Unwatched())

        def guess(made: Training = made) -> None:
            """Make them on fake ones."""
            predict_step(lambda: made, "cuda")

        how = "bfloat16" if low else "float32"
        against = {
            "real, wall time (at most 3)": lambda real=real: call_in_child(real),
            "real where it was made before": real,
        }
        for what, step in against.items():
            ratio, least, most = ratios(guess, step)
            row(f"{name}, {how}: predicted / {what}", f"{ratio:.2f} ({least:.2f} to {most:.2f})")


def ratios(one: Callable[[], object], other: Callable[[], object]) -> tuple[float, float, float]:
    """Return the median, least and largest ratio of two times, taken in turns."""

    def seconds(step: Callable[[], object]) -> float:
        """Return the seconds of one call."""
        started = perf_counter()
        step()
        return perf_counter() - started

    found = sorted(seconds(one) / seconds(other) for _ in range(TURNS + 1))[:TURNS]
    return statistics.median(found), found[0], found[-1]


def main(chosen: list[str]) -> None:
    """Print all tables, or the chosen ones."""
    parts = {"near": near, "large": large, "cost": cost, "budget": budget}
    print(conditions(), "\n\n| figure | measured |\n|---|---|", sep="")
    with isolate(0), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in chosen or parts:
            parts[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
