"""--trace: the whole record of a run, which can be read back and judged again."""

from trainguard.events.loop import Step
from trainguard.events.trace import Trace


def test_the_trace_is_written(folder) -> None:
    """Each optimizer step is in it, with the conditions and the promises of the run."""
    done = folder.run("--trace", "trace.jsonl", "--batch", "16", "train.py")
    assert done.returncode == 0
    trace = Trace.from_text((folder.path / "trace.jsonl").read_text(encoding="utf-8"))
    steps = [event for event in trace if isinstance(event, Step)]
    assert len(steps) == 30
    assert steps[0].source == f"{folder.path / 'train.py'}:20"
    assert (trace.subject, trace.promises["batch"]) == ("train.py", 16)
    assert trace.conditions["ended"] == "finished"
