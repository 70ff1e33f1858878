"""Whether a child of this process can be forked and still train."""

import sys

from trainguard.observe.device import present


def forks() -> bool:
    """
    Say whether a forked child can train.

    Not where there is an accelerator, awake or not: from the first backward pass on autograd has a
    thread for each device, and refuses to go backward in a child of that process.
    """
    return sys.platform == "linux" and present() == ("cpu",)
