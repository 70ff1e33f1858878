"""Which file is the user's own: libraries lie in more places than this environment's."""

import pytest
import torch

from trainguard.observe.tools.user_line import foreign


@pytest.mark.parametrize(
    ("file", "own"),
    [
        ("/home/me/project/train.py", True),
        ("<ipython-input-3-abc>", True),
        ("<string>", False),
        (torch.optim.Optimizer.step.__code__.co_filename, False),
        ("/home/me/.local/lib/python3.11/site-packages/lightning/loops/fit.py", False),
        ("/usr/lib/python3/dist-packages/torch/optim/optimizer.py", False),
        ("/home/me/site-packages.py", True),
    ],
)
def test_whose_file(file: str, own: bool) -> None:
    """What is installed anywhere, for a user or for the machine, is nobody's training."""
    assert foreign(file) is own
