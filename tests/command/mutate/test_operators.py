"""Operators: each plants one mistake, where it says, and leaves the rest of a file as it stands."""

import ast
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainguard.command.mutate.mistakes.operator import Mutant, mutants, operators
from trainguard.command.mutate.mistakes.source import SourceFile
from trainguard.core.errors import DeclarationError

LOOPS = sorted(Path(__file__).parents[3].glob("fixtures/healthy/loop/guard_*.py"))
# What is left of a line, and of its neighbours, by the operator.
PLANTED = [
    ("zero_grad_dropped", "opt.zero_grad()  # first", "pass  # first"),
    ("step_before_backward", "(a * b).backward()\nopt.step()", "opt.step()\n(a * b).backward()"),
    (
        "zero_grad_before_step",
        "opt.zero_grad()\nloss.backward()\n\nopt.step()",
        "loss.backward()\nopt.zero_grad()\n\nopt.step()",
    ),
    (
        "clip_after_step",
        "n = clip_grad_norm_(p, 1)  # binds\nopt.step()",
        "opt.step()  # binds\nn = clip_grad_norm_(p, 1)",
    ),
    (
        "zero_grad_in_each_micro_batch",
        "for w in ws:\n    o.zero_grad()\n    for b in w:\n        f(b).backward()",
        "for w in ws:\n    o.zero_grad()\n    for b in w:\n        o.zero_grad(); f(b).backward()",
    ),
    ("no_grad_dropped", "with torch.no_grad():\n    f()", "with torch.enable_grad():\n    f()"),
    ("sum_for_mean", "loss = (a - b).pow(2).mean()", "loss = (a - b).pow(2).sum()"),
    ("sum_for_mean", "F.mse_loss(\n    a, b,\n)", 'F.mse_loss(\n    a, b, reduction="sum",\n)'),
    (
        "sum_for_mean",
        "F.mse_loss(a, (b))",
        'F.mse_loss(a, (b), reduction="sum")',
    ),
    ("loss_not_divided", "(loss / 4).backward()", "(loss).backward()"),
    ("term_dropped", "loss = nll + 0.1 * kl", "loss = nll"),
    ("softmax_over_the_batch", "p = x.softmax(dim=-1)", "p = x.softmax(dim=0)"),
    ("argmax_over_the_batch", "y = torch.argmax(x, 1)", "y = torch.argmax(x, 0)"),
    (
        "softmax_before_cross_entropy",
        "self.criterion = nn.CrossEntropyLoss()\nself.criterion(out, y)",
        "self.criterion = nn.CrossEntropyLoss()\nself.criterion((out).softmax(1), y)",
    ),
    ("ignore_index_lost", "nll_loss(x, y, ignore_index=0)", "nll_loss(x, y)"),
    ("betas_lost", "Adam(p, betas=(0.5, 0.9), lr=1)", "Adam(p, lr=1)"),
    ("rate_times_10", "SGD(p, lr=a + b)", "SGD(p, lr=10 * (a + b))"),
    (
        "layer_frozen",
        "opt = SGD(net.parameters(), lr=1)",
        "next(net.children(), net).requires_grad_(False); opt = SGD(net.parameters(), lr=1)",
    ),
    (
        "schedule_by_epoch",
        "for e in es:\n    for b in bs:\n        f(b)\n        sched.step()",
        "for e in es:\n    for b in bs:\n        f(b)\n    sched.step()",
    ),
    (
        "schedule_by_step",
        "for e in es:\n    for b in bs:\n        opt.step()\n    sched.step()",
        "for e in es:\n    for b in bs:\n        opt.step(); sched.step()\n    sched.step()",
    ),
    ("causal_mask_off_by_one", "torch.triu(m, 1)", "torch.triu(m, diagonal=(1) + 1)"),
    ("padding_mask_inverted", "f(x, key_padding_mask=m)", "f(x, key_padding_mask=~(m))"),
    (
        "validated_on_training_data",
        "a = DataLoader(x, shuffle=True)\nval_loader = DataLoader(y)",
        "a = DataLoader(x, shuffle=True)\nval_loader = DataLoader(x)",
    ),
    ("normalised_twice", "(x - mean) / std", "((((x - mean) / std) - mean) / std)"),
    ("train_dropped", "net.train()", "pass"),
    ("decay_of_average_exchanged", "slow.lerp_(fast, 0.05)", "slow.lerp_(fast, 1 - (0.05))"),
]


def made(text: str, *globs: str) -> list[Mutant]:
    """Return the mutants of a text."""
    return list(mutants(text.encode(), "train.py", operators(globs)))


@pytest.mark.parametrize(("name", "before", "after"), PLANTED)
def test_a_mistake_is_planted(name: str, before: str, after: str) -> None:
    """The first mutant of an operator is the text with its mistake, comments and lines kept."""
    assert made(before, name)[0].text.decode() == after


def test_nothing_is_planted_where_it_cannot_be() -> None:
    """A program without a training has no mutants."""
    assert made("import sys\nprint(sum(sys.argv, start=1) / 2 + 3)") == []


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(LOOPS), st.sampled_from(["\n", "\r\n"]), st.sampled_from(["", "\ufeff"]),
    st.sampled_from(["", "# \u00e4\u00df\u6f22 \U0001f600\n", "x = 'caf\u00e9\\n' ; "]),
    st.sampled_from(operators()),
)  # fmt: skip
def test_a_mutant_parses_and_differs_in_one_place(file, newline, mark, first, operator) -> None:
    """Whatever its line ends, marks and letters, a file is left as it was around one segment."""
    text = (mark + first + file.read_text()).replace("\n", newline).encode()
    for mutant in mutants(text, file.name, [operator]):
        ast.parse(mutant.text)
        before, after = text.split(b"\n"), mutant.text.split(b"\n")
        start = next(i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b)
        end = next(
            i for i, (a, b) in enumerate(zip(before[::-1], after[::-1], strict=False)) if a != b
        )
        assert mutant.line - 1 <= start
        changed = before[start : len(before) - end]
        within = [s for s in ast.walk(ast.parse(text)) if isinstance(s, ast.stmt)]
        blocks = [
            s for s in within if s.lineno <= start + 1 and s.end_lineno >= start + len(changed)
        ]
        assert blocks or len(changed) <= 1


def test_operators_say_what_they_break_and_where_that_was_found() -> None:
    """Each has a name of its own, a sentence for a title, and a source that can be opened."""
    opened = re.compile(r"issue \d|pull request \d|question \d|\.org/t/\d")
    assert [o.key for o in operators() if not opened.search(o.source)] == []
    assert [o.key for o in operators() if not o.title.endswith(".")] == []
    assert len({made.key.partition(".")[2] for made in operators()}) == len(operators()) > 45


def test_files_that_cannot_be_read() -> None:
    """What is no Python is said in a sentence; what one operator cannot read, the others can."""
    with pytest.raises(DeclarationError, match="train.py is not Python: .* line 1"):
        SourceFile(b"def (", "train.py")
    with pytest.raises(DeclarationError, match="is not Python"):
        SourceFile(b"# coding: nonsense\n", "train.py")
    with pytest.raises(DeclarationError, match=r"--operators lossy\* matches no operator"):
        operators(["lossy*"])

    def fails(_source):
        raise AttributeError("of a syntax that is new")
        yield

    unread: list[str] = []
    broken = type(operators()[0])("losses.fails", fails)
    both = [broken, *operators(["zero_grad_dropped"])]
    assert len(list(mutants(b"o.zero_grad()", "train.py", both, unread))) == 1
    assert unread == ["losses.fails cannot read train.py"]


def test_the_encoding_of_a_file_stays() -> None:
    """A file in Latin-1 is a file in Latin-1 afterwards."""
    text = "# coding: latin-1\ns = 'gr\u00fc\u00dfe'; o.zero_grad()\n".encode("latin-1")
    (mutant,) = mutants(text, "train.py", operators(["zero_grad_dropped"]))
    assert mutant.text == text.replace(b"o.zero_grad()", b"pass")
