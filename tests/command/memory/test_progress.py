"""What is shown on a terminal while predictions are made, and nothing elsewhere."""

import os
import re
import sys
import time
from contextlib import suppress

import pytest

from trainguard.command.memory.command import telling

if sys.platform == "win32":
    pytest.skip("needs the terminals of Unix", allow_module_level=True)

import pty


def test_what_is_going_on_is_shown(monkeypatch) -> None:
    """The line says which size is predicted and for how long, and is gone in the end."""
    outer, inner = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(inner, "w") as terminal, telling_on(terminal, monkeypatch) as tell:
        tell("predicting T=64")
        time.sleep(0.8)
    sent = b""
    with suppress(OSError):  # the other end is closed
        while part := os.read(outer, 65536):
            sent += part
    os.close(outer)
    assert re.match(r"\r\x1b\[Ktrainguard: predicting T=64, \d+ s", sent.decode())
    assert sent.endswith(b"\r\x1b[K")


def telling_on(terminal, monkeypatch):
    """Return what tells, with a terminal for stderr."""
    monkeypatch.setattr(sys, "stderr", terminal)
    return telling()


def test_nothing_is_shown_elsewhere(capsys) -> None:
    """Where stderr is no terminal, nothing is written to it."""
    with telling() as tell:
        tell("predicting T=64")
        time.sleep(0.6)
    assert capsys.readouterr().err == ""
