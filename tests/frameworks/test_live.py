"""What is told of trainings of frameworks while they go on, without a callback of ours in them."""

import json
from pathlib import Path
from textwrap import indent

import pytest

from tests.frameworks.test_frameworks import NEEDS, SCRIPTS, run, skip_without

BROKEN = 10  # the optimizer step whose loss is nan
_NAN = "float('nan')"
_TRAINER = f"""class Broken(Trainer):
    def compute_loss(self, *args, return_outputs=False, **more):
        told = super().compute_loss(*args, return_outputs=return_outputs, **more)
        if return_outputs or self.state.global_step != {BROKEN}:
            return told
        return told * {_NAN}


config = """
_ACCELERATED = f"""accelerator.backward(loss * ({_NAN} if made == {BROKEN} else 1))
            made += accelerator.sync_gradients"""
# {script: (what stands in it, what is put there instead)}
EDITS = {
    "trainer.py": (("config = ", _TRAINER), ("Trainer(model, args", "Broken(model, args")),
    "lightning_module.py": (
        (
            "(self.net(x), y)",
            f"(self.net(x), y) * ({_NAN} if self.global_step == {BROKEN} else 1)",
        ),
    ),
    "accelerated.py": (
        ("accelerator = ", "made = 0\naccelerator = "),
        ("accelerator.backward(loss)", _ACCELERATED),
    ),
}
TOLD = ("--live", "--fail-fast", "--events", "told.jsonl")


@pytest.mark.slow
@pytest.mark.parametrize("script", EDITS)
def test_a_framework_is_stopped_at_a_loss_that_is_not_finite(script: str, tmp_path: Path) -> None:
    """It is told at once and with its step, `finally` blocks run, and the exit code is 1."""
    skip_without(*NEEDS[script][0])
    text = (SCRIPTS / script).read_text(encoding="utf-8")
    for old, new in EDITS[script]:
        assert old in text
        text = text.replace(old, new, 1)
    whole = f"try:\n{indent(text, '    ')}\nfinally:\n    print('closed')\n"
    (tmp_path / "train.py").write_text(whole)
    done = run(tmp_path, "-m", "trainguard", "run", *TOLD, "train.py")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "closed" in done.stdout
    assert f"trainguard: certain at step {BROKEN + 1}\nloss_is_finite: " in done.stderr
    assert f"stopped   by --fail-fast at step {BROKEN + 1}: loss_is_finite is" in done.stdout
    (line,) = (tmp_path / "told.jsonl").read_text().splitlines()
    told = json.loads(line)
    assert (told["invariant"], told["at"]["step"]) == ("loss_is_finite", BROKEN)


@pytest.mark.slow
@pytest.mark.parametrize("script", EDITS)
def test_a_healthy_one_goes_to_its_end(script: str, tmp_path: Path) -> None:
    """Looked at meanwhile, it makes all its steps, and nothing is told."""
    packages, steps = NEEDS[script]
    skip_without(*packages)
    words = ("-m", "trainguard", "run", *TOLD, "--json", "out.json", str(SCRIPTS / script))
    done = run(tmp_path, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "certain at step" not in done.stderr
    assert json.loads((tmp_path / "out.json").read_text())["trace"]["steps"] == steps
