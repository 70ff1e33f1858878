"""
Small scripts in the manner of different authors, each with one classical bug and a mended twin.

A twin is the same script with one edit. The bug is found under `trainguard run`, by what is named
here, and the twin has no finding and no note.
"""

from pathlib import Path

import pytest

from tests.forks import trainguard_run

SCRIPTS = Path(__file__).parent / "scripts"
_OPTIMIZER = "    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)\n"
_HEAD = "    # fine-tune for our three classes\n    model.fc = nn.Linear(64, 3)\n"
# {script: (what finds it, the buggy text, the mended text)}
BUGS = {
    "zero_grad_forgotten": (
        "gradients_start_empty",
        "        loss.backward()",
        "        self.opt.zero_grad()\n        loss.backward()",
    ),
    "loss_rewrapped": (
        "loss_depends_on_parameters",
        "torch.tensor(F.l1_loss(pred, Y[i : i + 32]).item(), requires_grad=True)",
        "F.l1_loss(pred, Y[i : i + 32])",
    ),
    "softmax_twice": (
        "logits_are_not_normalised_twice",
        "self.softmax(self.l2(x))",
        "self.l2(x)",
    ),
    "targets_broadcast": ("loss_inputs_do_not_broadcast", "model(x) - y", "model(x)[:, 0] - y"),
    "head_replaced": (
        "optimizer_holds_every_trainable_parameter",
        f"{_OPTIMIZER}{_HEAD}",
        f"{_HEAD}{_OPTIMIZER}",
    ),
    "blocks_shared": (
        "layers_are_distinct",
        "[ResidualBlock(width)] * depth",
        "[ResidualBlock(width) for _ in range(depth)]",
    ),
    "labels_shuffled": (
        "labels_follow_inputs",
        "    Xs = X[rng.permutation(len(X))]\n    ys = y[rng.permutation(len(y))]",
        "    order = rng.permutation(len(X))\n    Xs, ys = X[order], y[order]",
    ),
    "eval_left_on": (
        "training_mode_is_on",
        "    for _ in range(10):",
        "    model.train()\n    for _ in range(10):",
    ),
    "dropout_in_validation": (
        "evaluation_mode_is_on",
        "    with torch.no_grad():\n        va",
        "    net.eval()\n    with torch.no_grad():\n        va",
    ),
    "softmax_over_batch": ("samples_do_not_mix", "dim=0)", "dim=-1)"),
    "target_among_features": (
        "target_is_not_in_the_input",
        "inputs, target = table,",
        "inputs, target = table[:, :-1],",
    ),
    "clipped_while_scaled": (
        "clipping_takes_effect",
        "    torch.nn.utils.clip",
        "    scaler.unscale_(optimizer)\n    torch.nn.utils.clip",
    ),
    "scheduler_first": (
        "scheduler_follows_optimizer",
        "    sched.step()\n    opt.zero_grad()",
        "    if step:\n        sched.step()\n    opt.zero_grad()",
    ),
    "accumulation_not_divided": (
        "accumulation_equals_full_batch",
        "    loss.backward()",
        "    (loss / ACCUM).backward()",
    ),
    "encoder_detached": ("every_trainable_parameter_moves", "last[-1].detach()", "last[-1]"),
    "average_reversed": (
        "average_follows_model",
        "e.mul_(1 - decay).add_(p, alpha=decay)",
        "e.mul_(decay).add_(p, alpha=1 - decay)",
    ),
    "first_batch_forever": ("batches_differ", "batch_size=32)", "batch_size=32, shuffle=True)"),
    "zeroed_before_the_step": (
        "gradient_norm_is_positive",
        "    e.backward()\n    o.zero_grad()",
        "    o.zero_grad()\n    e.backward()",
    ),
    "nll_of_logits": (
        "logits_are_not_normalised_twice",
        "return self.fc2(x)",
        "return F.log_softmax(self.fc2(x), dim=1)",
    ),
    "future_in_sight": (
        "target_is_not_in_the_input",
        "self.enc(self.tok(idx) + self.pos)",
        "self.enc(self.tok(idx) + self.pos, nn.Transformer.generate_square_subsequent_mask(T))",
    ),
    "sigmoid_twice": ("logits_are_not_normalised_twice", ", nn.Sigmoid())", ")"),
    "validation_of_nothing": (
        "evaluation_measures_something",
        "DataLoader(val_set, batch_size=20, drop_last=True)",
        "DataLoader(val_set, batch_size=20)",
    ),
}
# What else such a bug entails, and may be told as well.
FOLLOWS = {
    "targets_broadcast": {"labels_matter"},  # each output is held against all labels
    "labels_shuffled": {"loss_beats_constant_prediction"},
}
# {script: (why nothing sees it, the buggy text, the mended text)}
MISSED = {
    "reduction_over_the_wrong_axis": (
        "the mean over the samples before the square is a loss that somebody may want",
        ".mean(dim=0).pow(2).sum()",
        ".pow(2).mean(dim=0).sum()",
    ),
}


def found(folder: Path, text: str) -> tuple[int, list[str]]:
    """Run a script under the recorder; return the exit code and the invariants found or noted."""
    (folder / "train.py").write_text(text, encoding="utf-8")
    run = trainguard_run(folder, "--strict", "train.py")
    assert run.code in (0, 1), run.printed
    return run.code, [finding["invariant"] for finding in run.told["findings"]]


@pytest.mark.parametrize("script", BUGS)
def test_a_classical_bug_is_found(script: str, tmp_path: Path) -> None:
    """The bug is found by the invariant that is named for it, and by none but what follows."""
    invariant, _, _ = BUGS[script]
    text = (SCRIPTS / f"{script}.py").read_text(encoding="utf-8")
    code, named = found(tmp_path, text)
    assert code == 1
    assert {invariant} <= {*named} <= {invariant} | FOLLOWS.get(script, set())


@pytest.mark.parametrize("script", [*BUGS, *MISSED])
def test_a_mended_twin_is_passed(script: str, tmp_path: Path) -> None:
    """Without the bug, nothing is found and nothing noted."""
    _, bug, mended = {**BUGS, **MISSED}[script]
    text = (SCRIPTS / f"{script}.py").read_text(encoding="utf-8")
    assert text.count(bug) == 1
    assert found(tmp_path, text.replace(bug, mended)) == (0, [])


@pytest.mark.parametrize("script", MISSED)
def test_what_is_missed_is_known(script: str, tmp_path: Path) -> None:
    """A bug that nothing sees stands in this list, until something does."""
    text = (SCRIPTS / f"{script}.py").read_text(encoding="utf-8")
    assert found(tmp_path, text) == (0, [])
