"""
Imported for its effect alone: `pytest -p tests.simulated.present`, or by a training.

TRAINGUARD_SIMULATED names the device that new tensors are on, where that is not the CPU.
"""

import os
from contextlib import ExitStack

import torch

from tests.simulated.device import DEFAULT, REAL, register
from tests.simulated.moved import MOVED, moved

if REAL not in os.environ:
    register()
if name := os.environ.get(DEFAULT):
    torch.set_default_device(name)
    if MOVED in os.environ:
        kept = ExitStack()  # for the rest of the process: what is let go of is undone
        kept.enter_context(moved(name))
