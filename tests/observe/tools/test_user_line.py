"""Which file is the user's own: libraries lie in more places than this environment's."""

import sys
import sysconfig
import weakref

import pytest
import torch

from trainguard.observe.tools.user_line import foreign, variables_of


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
        (f"{sysconfig.get_path('scripts')}/trainguard", False),
        (f"{sysconfig.get_path('scripts')}_of_mine/train.py", True),
    ],
)
def test_whose_file(file: str, own: bool) -> None:
    """What is installed anywhere, for a user or for the machine, is nobody's training."""
    assert foreign(file) is own


def test_variables_are_not_kept_alive() -> None:
    """What a function lets go of is gone, though its variables were looked at."""

    def function() -> tuple[bool, object]:
        """Look at a variable, and let go of it."""
        held = torch.ones(3)
        seen = weakref.ref(held)
        found = variables_of(sys._getframe())["held"] is held
        del held
        return found, seen()

    assert function() == (True, None)


def test_a_function_that_asks_for_its_variables_is_left_alone() -> None:
    """The dictionary that a function got of its arguments does not change under its hands."""

    def function(rate: float) -> dict[str, object]:
        """Keep the arguments, and be looked at when there are more variables."""
        given = locals()
        more = rate + 1
        assert variables_of(sys._getframe()) == {} != {"more": more}
        return given

    assert function(0.1) == {"rate": 0.1}


def test_a_model_in_evaluation_hides_nothing() -> None:
    """`model.eval()` is no call of `eval`."""

    def function(model: torch.nn.Module) -> bool:
        """Switch a model, and be looked at."""
        model.eval()
        return "model" in variables_of(sys._getframe())

    assert function(torch.nn.Identity())
