"""Imported for its effect alone: `pytest -p tests.simulated.present`, or by a training."""

from tests.simulated.device import register

register()
