"""Lines of the user's files that may explain what a run shows, as they are written."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from types import FrameType, ModuleType

import pytest
from torch.nn.functional import gumbel_softmax

from trainguard.observe.tools import written_lines
from trainguard.observe.tools.written_calls import has_near


def write(folder: Path, text: str) -> str:
    """Return the name of a file that says something."""
    file = folder / "train.py"
    file.write_text(dedent(text), "utf-8")
    return str(file)


def load(folder: Path, text: str, **names: object) -> ModuleType:
    """Return a module that was made from a file."""
    spec = importlib.util.spec_from_file_location("written", write(folder, text))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    vars(module).update(names)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("find", "text", "expected"),
    [
        (written_lines.find_backward, "x = 1\nloss.backward()\n", [2]),
        (written_lines.find_backward, "a.backward()\nb.backward()\n", []),
        (written_lines.find_casts, "m = m.to(torch.bfloat16)\nx.to(device)\n", [1]),
        (written_lines.find_casts, "x.to(device)\nm.to(dtype=torch.float16)\nm.half()\n", [2, 3]),
        (written_lines.find_casts, "x.half()\n" * 4, []),
        (written_lines.find_manual_steps, "p -= 0.1 * p.grad\n", [1]),
        (written_lines.find_manual_steps, "p.data.add_(p.grad.data, alpha=1)\n", [1]),
        (written_lines.find_manual_steps, "p.sub_(rate * p.grad)\n", [1]),
        (written_lines.find_manual_steps, "total += p.grad.norm()\nq.add_(p.grad)\n", []),
        (written_lines.find_manual_steps, "p.grad.add_(q.grad)\np.mul_(p.grad)\n", []),
        (written_lines.find_manual_steps, "p *= p.grad\n", []),
        (written_lines.find_modes, "model.train()\nmodel.eval()\n", [2]),
        (written_lines.find_orders, "rs.shuffle(x)\nrs.shuffle(y)\n", [1, 2]),
        (written_lines.find_orders, "x = x[torch.randperm(9)]\nx.sort()\n", [1]),
        (written_lines.find_orders, "shuffle(x)\n" * 4, []),
        (written_lines.find_thaws, "p.requires_grad = True\nq.requires_grad = False\n", [1]),
        (written_lines.find_thaws, "p.requires_grad_()\nq.requires_grad_(False)\n", [1]),
        (written_lines.find_thaws, "p.requires_grad_(requires_grad=False)\n", []),
        (written_lines.find_updates, "t.lerp_(s, 0.1)\nt.mul_(d).add_(s)\n", [1]),
        (written_lines.find_updates, "x = 1\nt.mul_(d).add_(s, alpha=1 - d)\n", [2]),
        (written_lines.find_updates, "t.copy_(d * t + (1 - d) * s)\nt.copy_(s)\n", [1]),
        (written_lines.find_updates, "t.add_(s)\nt.copy_(d * s)\n", []),
    ],
)
def test_few_lines_are_found(
    tmp_path: Path, find: Callable[[str], list[str]], text: str, expected: list[int]
) -> None:
    """The lines of a file that do something, if they are few."""
    file = write(tmp_path, text)
    assert find(file) == [f"{file}:{line}" for line in expected]


def test_a_file_that_is_not_there_has_no_lines(tmp_path: Path) -> None:
    """As where a trace is judged on another machine."""
    assert written_lines.find_orders(str(tmp_path / "gone.py")) == []


def test_another_name_for_a_number_is_found(tmp_path: Path) -> None:
    """`PAD = EOS`, where it is the only one."""
    file = write(tmp_path, "EOS = 1\nPAD = EOS\nEND = [EOS]\nrow[-1] = EOS\n")
    assert written_lines.find_alias(file, "EOS") == f"{file}:2"
    assert written_lines.find_alias(file, "PAD") == ""
    assert written_lines.find_alias(write(tmp_path / "..", "A = E\nB = E\n"), "E") == ""


def test_lines_that_cut_a_graph_are_found_in_their_order(tmp_path: Path) -> None:
    """In several functions; of what is none, and of libraries, nothing."""
    made = load(
        tmp_path,
        """
        def forward(x):
            y = x.detach()
            return y.data + x

        def other(x):





            return x.argmax(1)
        """,
    )
    found = written_lines.find_cuts([made.other, None, made.forward, gumbel_softmax])
    assert [line.rpartition(":")[2] for line in found] == ["3", "4", "12"]
    assert written_lines.find_cuts([gumbel_softmax]) == []


def test_too_many_cuts_tell_nothing(tmp_path: Path) -> None:
    """A function that takes everything out of its graph may mean to."""
    text = "def forward(x):\n" + "    x = x.detach()\n" * 5 + "    return x\n"
    assert written_lines.find_cuts([load(tmp_path, text).forward]) == []


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("def f():\n    return look()\n\nloss = (f() / 8)\n", 4),  # an outer statement, as it runs
        ("def f():\n    look()\n    n = 2\n    return n / 2\n\nf()\nx = 1 / 2\n", 4),  # later on
        ("def f():\n    x = 1 / 2\n    look()\n\nf()\n", 0),  # before
        ("look()\na = 1 / 2\nb = 1 / 2\n", 0),  # which of them is not known
        ("for i in (1,):\n    look()\n    a = 1\n    a /= 2\n", 4),
        ("x = [\n    look(),\n    1 / 2,\n]\n", 2),  # in one statement of several lines
    ],
)
def test_the_line_that_divides_is_found(tmp_path: Path, text: str, line: int) -> None:
    """The statement that is running, of any function, or the only one that is left."""
    seen: list[str] = []

    def look() -> int:
        """Look around, from the file."""
        frame: FrameType | None = sys._getframe(1)
        found = []
        while frame is not None and frame.f_globals.get("__name__") == "written":
            found.append(frame)
            frame = frame.f_back
        seen.append(written_lines.find_division(found))
        return 1

    made = load(tmp_path, text, look=look)
    assert seen == [f"{made.__file__}:{line}" if line else ""]


@pytest.mark.parametrize(
    ("text", "count"),
    [("f(1)\nx.f(1, 2)\n", 2), ("f(1, column=2)\n", 2), ("def f(a, b): ...\n", 0), ("f(\n", 0)],
)
def test_the_most_arguments_of_a_name(tmp_path: Path, text: str, count: int) -> None:
    """By place or by name, as a function or as a method; none of what cannot be read."""
    assert written_lines.count_arguments(write(tmp_path, text), "f") == count


def test_a_word_near_a_line(tmp_path: Path) -> None:
    """In the line, or the three before and after; as a word of its own, in any letters."""
    file = write(tmp_path, 'if loss < BEST_LOSS:\n    pass\n\n\nsave(state)\n\n\n\n"bestow"\n')
    assert has_near(f"{file}:4", "best")
    assert not has_near(f"{file}:5", "best")
    assert not has_near(f"{file}:9", "best")
    assert not has_near("nowhere.py:3", "best")
    assert not has_near("", "best")
