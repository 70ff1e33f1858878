"""What all benchmarks print alike: the conditions, and one row for each figure."""

import platform
from datetime import UTC, datetime

import torch


def conditions() -> str:
    """Return when, where and with what a benchmark ran."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    day = datetime.now(UTC).date().isoformat()
    return f"{day}, torch {torch.__version__}, python {platform.python_version()}, {device}"


def row(name: str, figure: str) -> None:
    """Print one figure as a row of a table."""
    print(f"| {name} | {figure} |", flush=True)
