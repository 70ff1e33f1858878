"""
What recording a training costs: time per step, memory, and the start of `trainguard run`.

Blocks of steps with and without a Recorder in turns, and whole processes in turns:
`python -m benchmarks.recorder`.
"""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import accumulate
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from benchmarks.report import conditions, row
from trainguard.observe.loop import window
from trainguard.observe.loop.recorder import Recorder

SURVEYED = 12  # the first steps are looked at more closely; they are not timed

SCRIPT = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.randn(8, 4)).square().mean().backward()
optimizer.step()
"""


class Transformer(nn.Module):
    """A causal language model of about ten million parameters."""

    def __init__(self, width: int = 320, layers: int = 8, words: int = 512) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        block = nn.TransformerEncoderLayer(
            width, 8, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, words)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return logits (N, T, words) for words (N, T)."""
        mask = nn.Transformer.generate_square_subsequent_mask(words.shape[1], words.device)
        logits: torch.Tensor = self.head(self.blocks(self.embed(words), mask, is_causal=True))
        return logits


class Recurrent(nn.Module):
    """A word language model: an embedding, two layers of LSTM, and words again."""

    def __init__(self, width: int = 32, words: int = 200) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(words, width), nn.Linear(width, words)
        self.rnn = nn.LSTM(width, width, 2, dropout=0.2)

    def forward(self, words: torch.Tensor, state: Any) -> Any:
        """Return logits (T, N, words) for words (T, N), and the next state."""
        hidden, state = self.rnn(self.embed(words), state)
        return self.head(hidden), state


def small() -> Callable[[], None]:
    """Return a step of a perceptron that takes about a millisecond."""
    model = nn.Sequential(
        nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )
    optimizer = torch.optim.AdamW(model.parameters())
    inputs, labels = torch.randn(128, 128), torch.randint(0, 10, (128,))

    def step() -> None:
        """Make one step."""
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    return step


def large() -> Callable[[], None]:
    """Return a step of the transformer."""
    model = Transformer()
    optimizer = torch.optim.AdamW(model.parameters())
    words = torch.randint(0, 512, (4, 65))

    def step() -> None:
        """Make one step."""
        optimizer.zero_grad()
        logits = model(words[:, :-1])
        F.cross_entropy(logits.reshape(-1, 512), words[:, 1:].reshape(-1)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def recurrent() -> Callable[[], None]:
    """Return a short step of the recurrent model, made by hand with its state carried on."""
    model = Recurrent()
    words = torch.randint(0, 200, (9, 8))
    state = [(torch.zeros(2, 8, 32), torch.zeros(2, 8, 32))]

    def step() -> None:
        """Make one step."""
        model.zero_grad()
        logits, after = model(words[:-1], tuple(each.detach() for each in state[0]))
        F.cross_entropy(logits.reshape(-1, 200), words[1:].reshape(-1)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.data.add_(parameter.grad, alpha=-0.1)
        state[0] = after

    return step


def block(step: Callable[[], None], count: int, recorded: bool, first: int) -> list[float]:
    """Return the seconds of the processor for each step of a block, after the first ones."""
    times = []
    with Recorder("benchmark", probe=False) if recorded else nullcontext():
        for _ in range(first + count):
            started = process_time()  # what else runs on a machine costs more than a recording
            step()
            times.append(process_time() - started)
    return times[first:]


def overhead(
    name: str,
    make: Callable[[], Callable[[], None]],
    count: int,
    turns: int,
    first: int = SURVEYED,
) -> None:
    """
    Print the ratio of recorded over unrecorded steps, and the noise.

    Of each step of a block the median of all turns counts: what disturbs a machine now and then
    does not, and what a recorder does at some steps alone does.
    """
    step = make()
    before, ours, after = zip(
        *([block(step, count, kind, first) for kind in (False, True, False)] for _ in range(turns)),
        strict=True,
    )
    plain, recorded = usual((*before, *after)), usual(ours)
    row(f"{name}: a step, ms", f"{1e3 * plain:.2f}")
    row(f"{name}: added by recording, ms", f"{1e3 * (recorded - plain):.3f}")
    row(f"{name}: recorded / plain", f"{recorded / plain:.3f}")
    row(f"{name}: plain / plain, the noise", f"{usual(after) / usual(before):.3f}")


def usual(blocks: Sequence[list[float]]) -> float:
    """Return the mean over the steps of blocks, of each step the median of all blocks."""
    return statistics.fmean(map(statistics.median, zip(*blocks, strict=True)))


def whole(step: Callable[[], None], count: int, recorded: bool) -> float:
    """Return the seconds of processor time of a run from its first step to its last."""
    started = process_time()
    with Recorder("benchmark", probe=False) if recorded else nullcontext():
        for _ in range(count):
            step()
    return process_time() - started


def runs(name: str, make: Callable[[], Callable[[], None]], count: int, turns: int) -> None:
    """Print the paired ratio of recorded over unrecorded runs."""
    step = make()
    whole(step, 100, False)
    trios = [[whole(step, count, kind) for kind in (False, True, False)] for _ in range(turns)]
    row(
        f"{name}: a run, seconds of processor time",
        f"{statistics.median(a for a, _, _ in trios):.2f}",
    )
    ratio = statistics.median(2 * b / (a + c) for a, b, c in trios)
    row(f"{name}: a run, recorded / plain", f"{ratio:.3f}")


def peak(kind: str, recorded: bool) -> int:
    """Return the peak bytes, resident or of tensors, of a process that trains the transformer."""
    command = [sys.executable, "-m", "benchmarks.recorder", kind, str(int(recorded))]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(run.stdout)


def trained(recorded: bool) -> None:
    """Make four steps of the transformer."""
    step = large()
    with Recorder("peak") if recorded else nullcontext():
        for _ in range(4):
            step()


def resident(recorded: bool) -> int:
    """Return the peak resident bytes of this process, trainguard's own modules among them."""
    trained(recorded)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def tensors(recorded: bool) -> int:
    """Return the most bytes that tensors had at once, as the profiler counts them."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as measured:
        trained(recorded)
    changes = [e for e in measured.profiler.kineto_results.events() if e.name() == "[memory]"]
    changes.sort(key=lambda change: change.start_ns())
    return max(accumulate(change.nbytes() for change in changes))


def start(command: list[str]) -> float:
    """Return how long a process takes from its start to its end, after one step."""
    started = perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return perf_counter() - started


def transformer(name: str) -> None:
    """Print what the later steps of the transformer cost, one in 16 of which is recorded."""
    window.DENSE = 8
    overhead(f"transformer, 10 M parameters, later steps{name}", large, count=48, turns=3)


PEAKS = {"tensors": tensors, "resident": resident}
# glibc gives memory back after some steps, and faults it in again: thousands of pages or none, by
# where small blocks happen to lie. That is 5 % of a step of 200 ms, recorded or not.
KEPT = {"MALLOC_TRIM_THRESHOLD_": str(2**31), "MALLOC_MMAP_MAX_": "0"}


def _ratio(pairs: list[tuple[int, int]]) -> float:
    """Return the median ratio of the second over the first."""
    return statistics.median(second / first for first, second in pairs)


def main() -> None:
    """Print all figures."""
    torch.set_num_threads(1)
    print(conditions(), flush=True)
    dense = window.DENSE
    overhead(f"perceptron, first {dense} steps", small, count=dense - SURVEYED, turns=5)
    overhead(f"perceptron, steps {dense} to {5 * dense}", small, 4 * dense, turns=5, first=dense)
    runs("perceptron, 4000 steps", small, count=4000, turns=3)
    runs("recurrent, 4000 short steps by hand", recurrent, count=4000, turns=3)
    for name, own in (("", {}), (", memory kept", KEPT)):
        transformer = [sys.executable, "-m", "benchmarks.recorder", "transformer", name]
        subprocess.run(transformer, check=True, env={**os.environ, **own})
    for kind in PEAKS:
        sizes = [(peak(kind, False), peak(kind, True)) for _ in range(3)]
        row(f"peak memory, {kind}, recorded / plain", f"{_ratio(sizes):.4f}")
    with tempfile.TemporaryDirectory() as name:
        script = Path(name) / "train.py"
        script.write_text(SCRIPT)
        plain, run = [sys.executable, str(script)], ["run", str(script)]
        ours = [sys.executable, "-m", "trainguard", *run]
        turns = [(start(plain), start(ours)) for _ in range(9)]
    row("python train.py, seconds", f"{statistics.median(a for a, _ in turns):.2f}")
    row("trainguard run adds, seconds", f"{statistics.median(b - a for a, b in turns):.2f}")


if __name__ == "__main__":
    if sys.argv[1:]:
        torch.set_num_threads(1)
        if sys.argv[1] == "transformer":
            transformer(sys.argv[2])
        else:
            print(PEAKS[sys.argv[1]](sys.argv[2] == "1"))
    else:
        main()
