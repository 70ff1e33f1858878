"""`tg.record()`: a with-block under the recorder, judged when it is asked."""

import inspect
import re
import subprocess
import sys
import textwrap
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import trainguard as tg

LEFT_OVER = "gradients_start_empty"


def train(zero: bool = True, steps: int = 30) -> None:
    """Fit a line; a real training at a small size."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    features = torch.randn(64, 8)
    for _ in range(steps):
        if zero:
            optimizer.zero_grad()
        nn.functional.mse_loss(net(features), features.sum(1, keepdim=True)).backward()
        optimizer.step()


@pytest.fixture(scope="module")
def broken():
    """Return a recording in which something is broken."""
    with tg.record() as seen:
        train(zero=False)
    return seen


def test_a_healthy_training() -> None:
    """The trace holds the steps, nothing is found, and a check returns the verdicts."""
    with tg.record("mlp") as seen:
        train()
    assert (seen.trace.subject, seen.trace.conditions["steps"]) == ("mlp", 30)
    assert seen.findings == ()
    outcomes = {judged.outcome: judged for judged in seen.check()}
    assert outcomes.keys() == {"passed", "skipped"}
    assert outcomes["skipped"].reason


def test_it_takes_the_name_of_the_function(broken) -> None:
    """Without a name, a recording is called what the function is called that makes it."""
    assert broken.trace.subject == "broken"


def test_a_cell_of_a_notebook(monkeypatch) -> None:
    """A recording is called what its cell is, shows itself there, and tells lines by the cell."""

    def format_code_name(file: str) -> tuple[str, str]:
        """Tell the cell of a file, as IPython's compiler does."""
        return ("Cell", {"/tmp/ipykernel_7/3191944802.py": "In[3]"}[file])

    compiler = SimpleNamespace(format_code_name=format_code_name)
    python = SimpleNamespace(get_ipython=lambda: SimpleNamespace(compile=compiler))
    monkeypatch.setitem(sys.modules, "IPython", python)
    body = "with tg.record() as seen:\n" + textwrap.indent(
        textwrap.dedent(inspect.getsource(train).partition('"""\n')[2]).replace("if zero", "if 0"),
        "    ",
    )
    cell = {"tg": tg, "torch": torch, "nn": nn, "steps": 10}
    exec(compile(body, "/tmp/ipykernel_7/3191944802.py", "exec"), cell)
    seen = cell["seen"]
    assert repr(seen).startswith("tg.record('cell 3'), 10 steps recorded: ")
    with pytest.raises(tg.Broken) as caught:
        seen.check()
    assert re.search(r" at +step 1, .* cell 3, line 10\n", str(caught.value))


def test_what_is_broken(broken) -> None:
    """To look raises nothing; to check raises the whole report."""
    assert [v.invariant.name for v in broken.verdicts if v.outcome == "broken"] == [LEFT_OVER]
    (finding,) = broken.findings
    with pytest.raises(tg.Broken) as caught:
        broken.check()
    assert str(caught.value).startswith(f"{LEFT_OVER}: {finding.summary}\n")
    assert '.check(allow={"gradients_start_empty": "<reason>"})' in str(caught.value)
    for shown in (broken, caught.value):  # as a notebook shows them
        assert "broken: gradients_start_empty</summary><pre>" in shown._repr_html_()


def test_check_takes_settings(broken) -> None:
    """`allow`, `select` and `ignore` are strict here as they are elsewhere."""
    broken.check(allow={LEFT_OVER: "summed on purpose"})
    broken.check(ignore=[LEFT_OVER])
    (judged,) = broken.check(select=["loss_is_finite"])
    assert judged.invariant.name == "loss_is_finite"
    with pytest.raises(tg.Broken, match='the excuse "once" is stale'):
        broken.check(allow={LEFT_OVER: "known", "loss_is_finite": "once"})
    with pytest.raises(tg.DeclarationError, match="Did you mean 'loss_falls'?"):
        broken.check(select=["loss_fals"])
    with pytest.raises(tg.DeclarationError, match="Did you mean 'loss_falls'?"):
        broken.check(allow={"loss_fals": "typed in haste"})


def test_steps() -> None:
    """The block is left after the last wanted step, and the program goes on behind it."""
    with tg.record(steps=5) as seen:
        train(steps=10**9)
    assert (seen.trace.conditions["steps"], seen.trace.conditions["ended"]) == (5, "stopped")


def test_promises() -> None:
    """Promises stand in the trace; limits do too."""
    with tg.record(batch=64, frozen="0.*", limits={"clipping_is_rare": 0.5}, probe=False) as seen:
        train()
    promises = seen.trace.promises
    assert (promises["batch"], promises["frozen"]) == (64, ("0.*",))
    assert promises["limit:clipping_is_rare"] == 0.5
    assert seen.trace.conditions["probe"] is False


WRONG = {
    "stepps=3": "tg.record has no option 'stepps'. Did you mean 'steps'?",
    "steps=0": "tg.record(steps=0) cannot be. Give a whole number >= 1.",
    "average=1.0": "tg.record(average=1.0) cannot be. Give a number in 0 to 1.",
    "timeout=3": "tg.record has no option 'timeout'. ",
}


@pytest.mark.parametrize("options", WRONG)
def test_a_wrong_option(options) -> None:
    """What cannot be promised is refused before anything is recorded."""
    with pytest.raises(tg.DeclarationError) as caught:
        eval(f"tg.record({options})")
    assert str(caught.value).startswith(WRONG[options])


def test_nothing_to_judge() -> None:
    """A block without a training step would pass everything: to judge it is refused."""
    with tg.record("idle") as seen:
        pass
    assert seen.trace.conditions["steps"] == 0
    for judge in (seen.check, lambda: seen.verdicts, lambda: seen.findings):
        with pytest.raises(tg.SubjectError, match="^`idle` made no training step"):
            judge()


def test_too_early() -> None:
    """Inside of the block there is no trace yet."""
    with tg.record("mlp") as seen, pytest.raises(RuntimeError, match="still recording"):
        seen.trace  # noqa: B018


def test_a_block_that_raises() -> None:
    """Its exception goes on its way, and what was seen until then can be looked at."""
    with pytest.raises(LookupError, match="mine"), tg.record() as seen:
        train()
        raise LookupError("mine")
    assert (seen.trace.conditions["steps"], seen.trace.conditions["ended"]) == (30, "failed")
    assert seen.check()


def test_it_does_not_import_torch() -> None:
    """To make a recording, before it begins, imports neither torch nor NumPy nor pytest."""
    program = (
        "import sys\nimport trainguard as tg\ntg.record('mlp', steps=3)\n"
        "print([m for m in ('torch', 'numpy', 'hypothesis', 'pytest') if m in sys.modules])"
    )
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )
    assert told.stdout.strip() == "[]"


def test_findings_while_it_trains() -> None:
    """A callback is told each finding once; the block is left where it returns True."""
    told = []
    with tg.record(on_finding=lambda name, finding: told.append((name, finding.at))) as seen:
        train(zero=False, steps=100)
    assert [name for name, _ in told] == [LEFT_OVER]
    assert seen.trace.conditions["steps"] == 100
    with tg.record(on_finding=lambda name, finding: True) as seen:
        train(zero=False, steps=100)
    assert seen.trace.conditions["steps"] < 50
    assert [v.invariant.name for v in seen.verdicts if v.outcome == "broken"] == [LEFT_OVER]


def test_a_callback_that_fails() -> None:
    """The training goes on, and it is told with the other faults."""
    with tg.record(on_finding=lambda name, finding: 1 / 0) as seen:
        train(zero=False, steps=60)
    assert seen.trace.conditions["steps"] == 60
    (fault,) = seen.trace.conditions["faults"]
    assert fault.startswith("nothing was told while it ran: ZeroDivisionError: division by zero")


def test_what_is_asked_too_early() -> None:
    """Before the block, and in it, there is nothing to ask for, and each is said."""
    seen = tg.record()
    with pytest.raises(RuntimeError, match="has not begun: ask after the with-block"):
        seen.check()
    with seen, pytest.raises(RuntimeError, match="is still recording: ask after the with-block"):
        seen.check()
