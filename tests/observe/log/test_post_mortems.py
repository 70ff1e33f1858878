"""The figures that two post-mortems published, as logs in three formats: each is found."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainguard.core.settings import Settings
from trainguard.judging.judge import judge_run
from trainguard.observe.log.entry import read_log
from trainguard.subjects.log import Log

Rows = list[dict[str, float]]

# flat-loss-autoencoder: 15 epochs of a warm-up from 1e-5 to 1e-4, counted in the wrong unit.
FLAT: Rows = [
    {"epoch": n, "loss": 275959 + 130 * math.sin(n), "lr": 1e-5 + n / 3e6} for n in range(1, 16)
]
# multi-domain-vjepa3d: a norm taken after zero_grad, and a cosine of 8 updates.
COSINE: Rows = [
    {
        "step": n,
        "loss": 0.5 * 0.99**n,
        "grad_norm": 0.0,
        "lr": 5e-4 * (1 + math.cos(math.pi * (n % 8) / 8)) / 2 + 1e-6,
    }
    for n in range(80)
]


def write_table(rows: Rows) -> str:
    """Write rows as a table."""
    lines = [",".join(f"{value:.8g}" for value in row.values()) for row in rows]
    return "\n".join([",".join(rows[0]), *lines, ""])


def write_objects(rows: Rows) -> str:
    """Write rows as JSON lines."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def write_print(rows: Rows) -> str:
    """Write rows as a script prints them."""
    return "".join(" | ".join(f"{k} {v:.8g}" for k, v in row.items()) + "\n" for row in rows)


FORMATS: dict[str, Callable[[Rows], str]] = {
    "metrics.csv": write_table,
    "log.jsonl": write_objects,
    "train.log": write_print,
}
FIGURES: dict[str, tuple[Rows, dict[str, Any], str, str]] = {
    "a loss flat within 0.1 % over 15 epochs": (FLAT, {}, "loss_falls", "0.0384 %"),
    "a rate at 15 % when its warm-up should be over": (
        FLAT, {"peak": 1e-4}, "rate_follows_one_schedule", "15 % of it"),
    "a norm of exactly 0.0": (COSINE, {}, "logged_norm_is_measured", "0 in all 80 rows"),
    "a rate that restarts every 8 updates": (
        COSINE, {}, "rate_follows_one_schedule", "9 times"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("figure", FIGURES)
def test_a_published_figure_is_found(tmp_path: Path, name: str, figure: str) -> None:
    """By the invariant that it is about, with the number that was published."""
    rows, promises, invariant, measured = FIGURES[figure]
    log = Log(tmp_path / name, **promises)
    Path(tmp_path / name).write_text(FORMATS[name](rows))
    verdicts = judge_run(log, read_log(log), Settings())
    found = {v.invariant.name: v.findings[0] for v in verdicts if v.findings}
    assert invariant in found
    assert measured in str(found[invariant].measured)
