"""How well a sum of columns and a constant fits numbers."""

from typing import Any

import numpy as np

Table = np.ndarray[Any, np.dtype[np.float64]]


def fit_columns(columns: Table, wanted: Table) -> tuple[Table, float]:
    """
    Return the factors of columns (N, K) and of a constant, and what they leave of N numbers.

    What they leave is told as its root mean square.
    """
    design = np.column_stack([columns, np.ones(len(columns))])
    factors, *_ = np.linalg.lstsq(design, wanted, rcond=None)
    rest = float(np.sqrt(np.mean((wanted - design @ factors) ** 2)))
    return factors.astype(np.float64), rest
