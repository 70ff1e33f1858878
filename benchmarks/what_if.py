"""
What questions to training steps cost, and what becomes of them.

Ten healthy trainings of `fixtures/`, made again until there are 200 steps, and as many of a
language model of two million parameters. Lost is what the run waits for, by the clock: forks, and
its deputy at its end. Beside is what deputies and their children take of the processor meanwhile;
pressing is what of it had the usual priority: `python -m benchmarks.what_if [NAME ...]`.
"""

import os
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stdout
from importlib import import_module
from io import StringIO
from time import perf_counter

import torch
from torch.nn import functional as F

from benchmarks.recorder import Transformer
from benchmarks.report import conditions, row
from trainguard.events.counterfactual import WhatIf
from trainguard.observe.loop.counterfactual.asking import Counterfactuals
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.tools.isolation import seed_everything

PROGRAMS = (
    "accuracy",
    "autoencoder",
    "character_transformer",
    "dcgan",
    "distillation",
    "exponential_average",
    "graph_convolution",
    "mixture_of_experts",
    "padded_text",
    "policy_gradient",
)
STEPS = 200
_CORES = len(os.sched_getaffinity(0))  # what is pressing costs the run its part of one of these


def large() -> None:
    """Train a language model of two million parameters, a little."""
    model = Transformer(width=160, layers=6)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = torch.randint(0, 512, (4 * STEPS, 65))
    for batch in torch.utils.data.DataLoader(data, 4, shuffle=True):
        optimizer.zero_grad()
        logits = model(batch[:, :-1])
        F.cross_entropy(logits.mT, batch[:, 1:]).backward()
        optimizer.step()


def ask(train: Callable[[], object], steps: int) -> tuple[list[float], list[WhatIf]]:
    """Make steps of a training; return seconds (its own, lost, beside, pressing), and answers."""
    seed_everything(0)
    with Recorder("x", steps=steps) as recorder, redirect_stdout(StringIO()):
        asked = recorder.watcher(Counterfactuals)
        lost = [clocked(asked, name) for name in ("_send", "_gather")]
        began = perf_counter()
        try:
            while True:
                train()
        finally:
            own = perf_counter() - began
    inquiry = asked._inquiry  # noqa: SLF001 events do not tell
    seconds = [own, sum(map(sum, lost)), inquiry.spent, inquiry.pressing]
    return seconds, [event for event in recorder.trace if isinstance(event, WhatIf)]


def clocked(asked: Counterfactuals, name: str) -> list[float]:
    """Let a method take down the seconds of its calls, and return where."""
    method, seconds = getattr(asked, name), list[float]()

    def wrapper(*args: object) -> None:
        """Call it."""
        began = perf_counter()
        method(*args)
        seconds.append(perf_counter() - began)

    setattr(asked, name, wrapper)
    return seconds


def tell(name: str, seconds: list[float], events: list[WhatIf]) -> None:
    """Print the row of a program."""
    became = Counter(e.outcome for e in events if e.question != "nothing edited")
    told = [str(became[word]) for word in ("answered", "void", "given up")]
    own, lost, beside, pressing = seconds
    share = (lost + pressing / _CORES) / own
    times = [f"{own:.2f} s", f"{1000 * lost:.0f} ms", f"{1000 * pressing:.0f} ms", f"{share:.1%}"]
    times += [f"{beside:.2f} s"]
    row(name, " | ".join([*times, *told]))


def main(words: list[str]) -> None:
    """Print the table."""
    row("program", "run | lost | pressing | share | beside | answered | void | given up")
    row("---", "--: | --: | --: | --: | --: | --: | --: | --:")
    for name in PROGRAMS:
        if not words or name in words:
            tell(name, *ask(import_module(f"fixtures.healthy.loop.guard_{name}").train, STEPS))
    if not words or "large" in words:
        tell("a larger model", *ask(large, STEPS))


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(conditions(), f"load {os.getloadavg()[0]:.1f} on {_CORES} cores", sep=", ")
    main(sys.argv[1:])
