"""--no-probes: nothing is copied and tried out."""

import pytest

from trainguard.events.probe import Probe
from trainguard.events.trace import Trace


@pytest.mark.parametrize("options", [[], ["--no-probes"]])
def test_no_probes(folder, options) -> None:
    """The recorder is told, and a trace without probes holds none."""
    folder.run(*options, "--trace", "trace.jsonl", "train.py")
    trace = Trace.from_text((folder.path / "trace.jsonl").read_text(encoding="utf-8"))
    assert trace.conditions["probe"] is not bool(options)
    assert not options or not any(isinstance(event, Probe) for event in trace)
