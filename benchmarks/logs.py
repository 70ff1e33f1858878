"""
How well logs are judged: what is found of planted faults, and what is said of healthy logs.

    python -m benchmarks.logs            200 short trainings, their logs, and faults planted in them
    python -m benchmarks.logs --long     a log of 1,000,000 steps: seconds and memory

Ten kinds of training, each with 20 seeds, batch sizes, rates, distances between rows and formats.
Half of them are killed and resumed from a checkpoint, so that steps are logged twice.
"""

import json
import math
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.report import conditions, row
from benchmarks.trainings import STEPS, Rows, train
from trainguard.core.settings import Settings
from trainguard.judging.judge import judge_run
from trainguard.observe.log.entry import read_log
from trainguard.subjects.log import Log

SEEDS = 20
Fault = Callable[[Rows, random.Random], Rows]


def write(rows: Rows, folder: Path, form: int) -> Path:
    """Write a log in one of four formats."""
    names = ("step", "loss", "lr", "grad_norm", "val_loss", "time")
    if form == 0:
        file = folder / "metrics.csv"
        cells = [",".join(repr(r[n]) if n in r else "" for n in names) for r in rows]
        file.write_text("\n".join([",".join(names), *cells, ""]))
    elif form == 1:
        file = folder / "log.jsonl"
        file.write_text("".join(json.dumps(r) + "\n" for r in rows))
    elif form == 2:
        file = folder / "trainer_state.json"
        names = {"lr": "learning_rate", "val_loss": "eval_loss"}
        history = [{names.get(n, n): v for n, v in r.items() if n != "time"} for r in rows]
        file.write_text(json.dumps({"max_steps": STEPS, "log_history": history}))
    else:
        file = folder / "train.log"
        said = [" | ".join(f"{n} {v:.6g}" for n, v in r.items() if n != "time") for r in rows]
        file.write_text("\n".join([*said, ""]))
    return file


def judge(rows: Rows, folder: Path, form: int, told: str = "", **promises: Any) -> dict[str, str]:
    """Return what is found in a log with some settings beside it, and how sure."""
    file = write(rows, folder, form)
    (folder / "config.yaml").write_text(told)
    log = Log(file, **promises)
    found = {}
    for verdict in judge_run(log, read_log(log), Settings()):
        for finding in verdict.findings:
            if found.get(verdict.invariant.name) != "broken":
                found[verdict.invariant.name] = finding.rank.value
    file.unlink()
    return found


def changed(name: str, change: Callable[[float, float], float]) -> Fault:
    """Return a fault that changes a column: `change` is given its value, and how far the run is."""

    def plant(rows: Rows, _: random.Random) -> Rows:
        """Change the rows that have the column."""
        last = rows[-1]["step"]
        return [{**r, name: change(r[name], r["step"] / last)} if name in r else r for r in rows]

    return plant


def resumed(rows: Rows) -> tuple[Rows, Rows]:
    """Return the two halves of a run, without the steps that were logged twice."""
    once = list({(r["step"], "val_loss" in r): r for r in rows}.values())
    once.sort(key=lambda r: r["step"])
    middle = STEPS // 2
    return [r for r in once if r["step"] < middle + 20], [r for r in once if r["step"] >= middle]


def rate_again(rows: Rows, _: random.Random) -> Rows:
    """Let the rate after a resume be that of the beginning."""
    first, second = resumed(rows)
    rates = [r["lr"] for r in first if "lr" in r]
    if len(set(rates)) < 3:
        return []  # there is nothing that could begin again
    begun = iter([*rates, *[rates[-1]] * len(second)])
    return first + [{**r, "lr": next(begun)} if "lr" in r else r for r in second]


def loss_leaps(rows: Rows, _: random.Random) -> Rows:
    """Let the loss after a resume be that of a model that has not learned."""
    first, second = resumed(rows)
    level = 1.5 * max(r["loss"] for r in first[: len(first) // 4] if "loss" in r)
    return first + [{**r, "loss": level + 0.1 * r["loss"]} if "loss" in r else r for r in second]


def seen_again(rows: Rows, _: random.Random) -> Rows:
    """Let the loss be 15 % lower for two thirds of what comes after a resume."""
    first, second = resumed(rows)
    lower = [{**r, "loss": 0.85 * r["loss"]} if "loss" in r else r for r in second]
    return first + [
        r if r["step"] > STEPS * 5 / 6 else s for r, s in zip(second, lower, strict=True)
    ]


def stopped(_: float, part: float) -> float:
    """Return a warm-up that stops after 15 % of its way."""
    return 1e-3 * min(part, 0.075) / 0.5


def hardly(_: float, part: float) -> float:
    """Return a cosine over all steps that is advanced once for each of ten epochs."""
    return 1e-3 * (1 + math.cos(math.pi * int(10 * part) / STEPS)) / 2


def two_writers(rows: Rows, rng: random.Random) -> Rows:
    """Let another process write some of the same steps."""
    twice = []
    for r in rows:
        twice.append(r)
        if "loss" in r and rng.random() < 0.3:
            twice.append({**r, "loss": 1.3 * r["loss"] + 0.01})
    return twice


def slow(rows: Rows, _: random.Random) -> Rows:
    """Let each step of the second half take 0.9 s, of the first 0.3 s."""
    clock, last, told = 0.0, 0.0, []
    for r in rows:
        clock += max(0.0, r["step"] - last) * (0.3 if r["step"] < STEPS // 2 else 0.9)
        last = r["step"]
        told.append({**r, "time": clock})
    return told


def stretched(rows: Rows) -> Rows:
    """Let a run last three minutes, with the pauses and hurries that its own clock had."""
    begin, length = rows[0]["time"], max(r["time"] for r in rows) - rows[0]["time"]
    return [{**r, "time": 180 * (r["time"] - begin) / length} for r in rows]


def cosine(_: float, part: float) -> float:
    """Return a cosine that restarts six times."""
    return 1e-4 + 1e-3 * (1 + math.cos(math.pi * (6 * part % 1)))


def gap(rows: Rows, _: random.Random) -> Rows:
    """Leave out two fifths of the run."""
    return [r for r in rows if not 0.3 < r["step"] / STEPS < 0.7]


# What must be known beside a log for some faults to be faults: settings, promises, a format.
BESIDE: dict[str, dict[str, Any]] = {
    "a warm-up that stops early": {"told": f"warmup_steps: {STEPS // 2}\n"},
    "a decay by epochs, as long as steps": {"form": 2},
    "one below zero, of a cross-entropy": {"classes": 10},
    "three times slower": {"form": 0},
}
NOISE = random.Random(0)
FAULTS: dict[str, tuple[str, Fault]] = {
    "nan from 60 % on": ("loss_is_finite", changed(
        "loss", lambda v, p: v if p < 0.6 else math.nan)),
    "flat within 0.05 %": ("loss_falls", changed("loss", lambda *_: 7 + 1e-3 * NOISE.random())),
    "five times the loss from 70 % on": ("loss_recovers_from_spikes", changed(
        "loss", lambda v, p: v if p < 0.7 else 50 * (v + 1))),
    "a cosine that restarts": ("rate_follows_one_schedule", changed("lr", cosine)),
    "a rate of zero": ("learning_rate_is_positive", changed("lr", lambda *_: 0.0)),
    "a decay that is over early": ("rate_lasts_for_the_run", changed(
        "lr", lambda _, p: 1e-3 * 0.5 ** (200 * p))),
    "the rate begins again": ("rate_continues_after_resume", rate_again),
    "the loss leaps at a resume": ("loss_continues_after_resume", loss_leaps),
    "samples seen again after one": ("loss_continues_after_resume", seen_again),
    "a warm-up that stops early": ("rate_follows_one_schedule", changed("lr", stopped)),
    "a decay by epochs, as long as steps": ("rate_follows_one_schedule", changed("lr", hardly)),
    "a norm of zero": ("logged_norm_is_measured", changed("grad_norm", lambda *_: 0.0)),
    "a norm after clipping": ("logged_norm_is_measured", changed("grad_norm", lambda *_: 1.0)),
    "a validation loss of zero": ("evaluation_measures_something", changed(
        "val_loss", lambda *_: 0.0)),
    "one that never changes": ("validation_follows_training", changed("val_loss", lambda *_: 0.5)),
    "one below zero, of a cross-entropy": ("validation_loss_is_possible", changed(
        "val_loss", lambda v, _: -abs(v))),
    "one that is divided by 32": ("validation_loss_is_possible", changed(
        "val_loss", lambda v, _: v / 32)),
    "one that rises by 60 %": ("validation_follows_training", changed(
        "val_loss", lambda v, p: v if p < 0.4 else 1.6 * v + p)),
    "two processes, one log": ("steps_are_logged_once", two_writers),
    "two fifths missing": ("no_step_is_missing", gap),
    "three times slower": ("throughput_lasts", slow),
}  # fmt: skip


def healthy() -> Iterator[tuple[int, int, Rows]]:
    """Yield the rows of 200 trainings."""
    for kind in range(10):
        for seed in range(SEEDS):
            yield kind, seed, train(kind, seed)
        print(f"kind {kind} trained", file=sys.stderr, flush=True)


def table() -> None:
    """Print what is found of what was planted, and what is said of healthy logs."""
    false, planted, found = Counter[tuple[str, str]](), Counter[str](), Counter[str]()
    logs = 0
    with TemporaryDirectory() as name:
        for kind, seed, rows in healthy():
            folder, rng = Path(name), random.Random(seed)
            logs += 1
            for invariant, rank in judge(rows, folder, seed % 4).items():
                false[invariant, rank] += 1
                print(f"{kind}/{seed}: {invariant} ({rank})", file=sys.stderr)
            timed = judge(stretched(rows), folder, 0).get("throughput_lasts")
            false["throughput_lasts, three minutes", str(timed)] += 1
            for fault, (invariant, plant) in FAULTS.items():
                beside = {"form": seed % 4, **BESIDE.get(fault, {})}
                if told := plant(rows, rng):
                    planted[fault] += 1
                    found[fault] += invariant in judge(told, folder, **beside)
    print(f"\n{conditions()}, {logs} healthy logs\n")
    print("| planted | judged by | found |\n|---|---|---|")
    for fault, (invariant, _) in FAULTS.items():
        print(f"| {fault} | {invariant} | {found[fault]} of {planted[fault]} |")
    print("\n| said of healthy logs | broken | note |\n|---|---|---|")
    names = sorted({invariant for _, (invariant, _) in [*FAULTS.items()]} | {n for n, _ in false})
    for invariant in names:
        broken, notes = false[invariant, "broken"], false[invariant, "note"]
        print(f"| {invariant} | {broken} of {logs} | {notes} of {logs} |")


LONG = {
    "metrics.csv": ("step,loss,lr\n", "{},{:.5f},{:.4e}\n", ""),
    "log.jsonl": ("", '{{"step": {}, "loss": {:.5f}, "lr": {:.4e}}}\n', ""),
    "train.log": ("", "step {} | loss {:.5f} | lr {:.4e}\n", ""),
    "wide.csv": (
        "step,loss,lr" + ",x" * 30 + "\n",
        "{},{:.5f},{:.4e}" + ",0.12345" * 30 + "\n",
        "",
    ),
    "trainer_state.json": (
        '{"log_history": [{}',
        ',\n{{"step": {}, "loss": {:.5f}, "learning_rate": {:.4e}}}',
        '], "max_steps": 1000000}',
    ),
}


def long() -> None:
    """Print what diagnosing 1,000,000 steps takes, in a process for each of five formats."""
    print(f"{conditions()}\n\n| figure | measured |\n|---|---|", flush=True)
    for name, (head, line, end) in LONG.items():
        with TemporaryDirectory() as folder:
            file = Path(folder) / name
            with file.open("w") as opened:
                opened.write(head)
                for n in range(10**6):
                    opened.write(line.format(n, 0.4 + 2 * 0.99999**n, 1e-3 * (1 - n / 1e6)))
                opened.write(end)
            begun = time.perf_counter()
            command = [sys.executable, "-m", "trainguard", "diagnose", str(file)]
            with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
                _, status, used = os.wait4(process.pid, 0)
                process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        row(f"1,000,000 rows of {name}, seconds", f"{time.perf_counter() - begun:.1f}")
        row("of these on a processor, seconds (under 10)", f"{used.ru_utime + used.ru_stime:.1f}")
        row("memory, MiB (under 500)", f"{used.ru_maxrss / 1024:.0f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    long() if "--long" in sys.argv else table()
