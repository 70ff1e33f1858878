"""
What questions to training steps cost, and what becomes of them.

Ten healthy trainings of `fixtures/`, made again until there are 200 steps, and 80 steps of a
language model of two million parameters. The time is that of the
processor, of the parent and its children: `python -m benchmarks.what_if`.
"""

import sys
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stdout
from importlib import import_module
from io import StringIO
from time import process_time

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
_FEW = 80  # steps of the large model


def large() -> None:
    """Train a language model of two million parameters, a little."""
    model = Transformer(width=160, layers=6)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = torch.randint(0, 512, (4 * _FEW, 65))
    for batch in torch.utils.data.DataLoader(data, 4, shuffle=True):
        optimizer.zero_grad()
        logits = model(batch[:, :-1])
        F.cross_entropy(logits.mT, batch[:, 1:]).backward()
        optimizer.step()


def ask(train: Callable[[], object], steps: int) -> tuple[float, float, list[WhatIf]]:
    """Make steps of a training; return its seconds, those of questions, and what was asked."""
    seed_everything(0)
    with Recorder("x", steps=steps) as recorder, redirect_stdout(StringIO()):
        asked = recorder.watcher(Counterfactuals)
        began = process_time()
        try:
            while True:
                train()
        finally:
            own = process_time() - began
            spent = asked._spent  # noqa: SLF001 events do not tell what follow-ups took
    events = [event for event in recorder.trace if isinstance(event, WhatIf)]
    return own, spent, events


def tell(name: str, own: float, spent: float, events: list[WhatIf]) -> None:
    """Print the row of a program."""
    became = Counter(e.outcome for e in events if e.question != "nothing edited")
    told = [str(became[word]) for word in ("answered", "void", "given up")]
    share = f"{spent / own:.1%}"
    row(name, " | ".join([f"{own:.2f} s", f"{spent:.2f} s", share, *told]))


def main(words: list[str]) -> None:
    """Print the table."""
    row("program", "steps | questions | share | answered | void | given up")
    row("---", "--: | --: | --: | --: | --: | --:")
    for name in PROGRAMS:
        if not words or name in words:
            tell(name, *ask(import_module(f"fixtures.healthy.loop.guard_{name}").train, STEPS))
    if not words or "large" in words:
        tell("a larger model", *ask(large, _FEW))


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(conditions())
    main(sys.argv[1:])
