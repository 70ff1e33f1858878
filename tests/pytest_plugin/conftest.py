"""A folder with guard files in it, and pytest run there with --trainguard."""

from dataclasses import dataclass

import pytest

# pytester forgets modules that a run inside this process was the first to import, and torch
# cannot be imported twice: all that such a run needs is imported here.
import trainguard.observe.loss.observer
import trainguard.observe.schedule.observer
import trainguard.pytest_plugin.session  # noqa: F401

HEAD = """
import torch
import trainguard as tg

"""
SUBJECTS = {
    # Everything holds.
    "mse": """
mse = tg.Loss(
    torch.nn.functional.mse_loss,
    input=tg.real("B D", -3, 3),
    target=tg.real("B D", -3, 3, grad=False),
)
""",
    # The branch of torch.where that is not taken leaks a nan: gradient_is_finite is broken.
    "leak": """
def root(x):
    return torch.where(x > 0, x.abs().sqrt(), x).sum()

leak = tg.Loss(root, x=tg.real("B", -1, 1))
""",
    # The same, known and excused.
    "excused": """
def known(x):
    return torch.where(x > 0, x.abs().sqrt(), x).sum()

excused = tg.Loss(known, x=tg.real("B", -1, 1), allow={"gradient_is_finite": "see ticket 7"})
""",
    # An excuse for what holds.
    "stale": """
stale = tg.Loss(lambda x: (x ** 2).sum(), x=tg.real("B", -1, 1), name="square",
                allow={"gradient_is_finite": "once upon a time"})
""",
    # Cannot be observed at all.
    "raising": """
def quarrel(x):
    raise RuntimeError("no such luck")

raising = tg.Loss(quarrel, x=tg.real("B", -1, 1))
""",
    # first_step_learns is a note.
    "warmup": """
def ramp(step):
    return 1e-3 * min(1.0, step / 10)

warmup = tg.Schedule(ramp)
""",
    "bf16": """
bf16 = tg.Loss(lambda x: (x ** 2).sum(), x=tg.real("B", -1, 1), dtypes=("float32", "bfloat16"))
""",
}


@dataclass
class Project:
    """A folder of a team that uses trainguard."""

    pytester: pytest.Pytester

    def declare(self, file: str, *subjects: str, more: str = "") -> None:
        """Write a module that declares the named subjects, and `more` after them."""
        body = HEAD + "".join(SUBJECTS[name] for name in subjects) + more
        self.pytester.makepyfile(**{file: body})

    def run(self, *options: str, profile: str = "quick") -> pytest.RunResult:
        """Run pytest in this process with --trainguard and more options."""
        explored = [f"--trainguard-profile={profile}"] if profile else []
        return self.pytester.runpytest_inprocess("--trainguard", *explored, *options)

    def collected(self, *options: str) -> list[str]:
        """Return the node ids that a run with these options collects."""
        lines = self.run("--collect-only", "-q", *options).outlines
        return [line for line in lines if "::" in line and not line.startswith("ERROR")]


@pytest.fixture
def project(pytester: pytest.Pytester) -> Project:
    """Return an empty folder for guard files."""
    return Project(pytester)
