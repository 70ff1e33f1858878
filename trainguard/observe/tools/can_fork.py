"""Whether a child of this process can be forked and still train."""

import os
import sys
import warnings
from functools import cache

import torch

from trainguard.observe.tools.isolation import present


def forks() -> bool:
    """
    Say whether a forked child can train.

    Not where there is an accelerator, awake or not: from the first backward pass on autograd has a
    thread for each device, and refuses to go backward in a child of that process.
    """
    return sys.platform == "linux" and present() == ("cpu",) and _goes_backward_in_a_child()


def go_backward() -> None:
    """
    Make the smallest backward pass there is: at its first one, autograd counts the devices.

    To be called before tensors are made fake: on a machine without an accelerator, torch pretends
    from then on that there is one, and some versions (2.15) would count it.
    """
    with torch.enable_grad():
        torch.zeros((), device="cpu", requires_grad=True).backward()  # type: ignore[no-untyped-call]


@cache
def _goes_backward_in_a_child() -> bool:
    """Try it once: fake tensors of other code, such as torch.compile, may have come before."""
    go_backward()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Python 3.12: nothing that holds a lock is used
        child = os.fork()
    if not child:
        try:
            go_backward()
            os._exit(0)
        except BaseException:  # noqa: BLE001 whatever it is, it does not go
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
