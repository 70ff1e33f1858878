"""Lengths of padded samples, where the variables of the running functions tell them."""

from collections.abc import Sequence

import torch

from trainguard.observe.tools.local_values import has_memory
from trainguard.observe.tools.user_line import user_frames, variables_of

_FRAMES = 4  # of the user's functions that may have them
_MOST = 4096  # samples


def find_lengths(longest: int, others: Sequence[int]) -> str:
    """
    Return the variable that has as many lengths as `others`, the largest of which is `longest`.

    Nothing where there is none, or only one that is the same for all samples, or `others`.
    """
    for frame in user_frames(_FRAMES):
        for name, value in variables_of(frame).items():
            if isinstance(value, torch.Tensor) and value.shape == (len(others),):
                whole = not (value.is_floating_point() or value.is_complex())
                if whole and value.is_cpu and has_memory(value) and len(others) <= _MOST:
                    own = value.tolist()
                    if 0 < min(own) < max(own) == longest and own != list(others):
                        return name
    return ""
