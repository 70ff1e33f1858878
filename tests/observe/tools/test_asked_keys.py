"""What the user's files ask dictionaries for, read from their text."""

from pathlib import Path

import pytest

from trainguard.observe.tools.asked_keys import KeysOfFile, are_one_word, read_keys


def keys_of(tmp_path: Path, text: str) -> KeysOfFile:
    """Return what a file with this text does with keys."""
    file = tmp_path / "script.py"
    file.write_text(text, encoding="utf-8")
    return read_keys(str(file))


@pytest.mark.parametrize(
    ("asked", "there"),
    [
        ("states_id_end", "state_is_end"),
        ("learning_rate", "lr"),
        ("wd", "weight_decay"),
        ("clip_by", "by_clip"),
        ("weigth", "weight"),
        ("batchSize", "batch_size"),
        ("sample_weights", "sample_weight"),
    ],
)
def test_one_word(asked: str, there: str) -> None:
    """A letter is off, two are exchanged, the words are, or only their initials are left."""
    assert are_one_word(asked, there)
    assert are_one_word(there, asked)


@pytest.mark.parametrize(
    ("asked", "there"),
    [
        ("mask", "mask"),
        ("x_train", "y_train"),
        ("input", "output"),
        ("image_mask", "image_id"),
        ("fc1", "fc2"),
        ("block_10", "block_12"),
        ("val_loss", "train_loss"),
        ("mask", "attention_mask"),
        ("", "loss"),
    ],
)
def test_several_words(asked: str, there: str) -> None:
    """Other words, places and numbers are no slip, and what is the same is none either."""
    assert not are_one_word(asked, there)
    assert not are_one_word(there, asked)


def test_what_is_asked_for(tmp_path: Path) -> None:
    """By get, in, getattr and hasattr; what else the same function reads without asking."""
    text = """
def step(batch, args):
    x = batch["x"]
    if "mask" in batch:
        x = x * batch["mask"]
    weight = batch.get("weight", 1.0)
    return getattr(args, "clip", None), hasattr(args, "seed"), batch.get(x)

last = batch.get("y") if "names" not in batch else 0
"""
    asked = {(a.key, a.name, *sorted(a.read)) for a in keys_of(tmp_path, text).asked}
    assert asked == {
        ("mask", "batch", "x"),
        ("weight", "batch", "x"),
        ("clip", "args"),
        ("seed", "args"),
        ("y", "batch"),
        ("names", "batch"),
    }


@pytest.mark.parametrize(
    ("line", "defined"),
    [
        ('x["key"] = 1', True),
        ('x = {"key": 1}', True),
        ("x = dict(key=1)", True),
        ('p.add_argument("--key", help="other")', True),
        ('print(x["key"])', False),
        ("print(x.key)", False),
        ('names = ["key"]', False),
    ],
)
def test_what_is_set_is_not_read(tmp_path: Path, line: str, defined: bool) -> None:
    """A key that is only set is none that anything reads; any other string may be one."""
    found = keys_of(tmp_path, line)
    assert ("key" in found.defined, "key" in found.read) == (defined, not defined)
    assert "other" not in found.read


@pytest.mark.parametrize(
    ("line", "whole"),
    [
        ("f(**x)", True),
        ("y = {**x}", True),
        ("for key in x: pass", True),
        ("for key, value in sorted(x.items()): pass", True),
        ("y = [2 * value for value in self.x.values()]", True),
        ("sum(x.values())", True),
        ("y = {f'a/{key}': value for key, value in x.items()}", True),
        ("y = x[key]", True),
        ("y = x.get(key)", True),
        ("y = getattr(x, key)", True),
        ("f(*x)", True),
        ('f(**y["x"])', True),
        ("y = {key: value.to(device) for key, value in x.items()}", False),
        ("for row in range(x['rows']): pass", False),
        ("for row in range(x.rows): pass", False),
        ("y = x[1:]", False),
        ("get()", False),
    ],
)
def test_what_is_read_whole(tmp_path: Path, line: str, whole: bool) -> None:
    """Where all keys are gone through, or they are computed; not where a copy is moved."""
    assert ("x" in keys_of(tmp_path, line).whole) == whole


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    """It asks for nothing."""
    assert keys_of(tmp_path, "if:") == KeysOfFile()
    assert read_keys(str(tmp_path / "none.py")) == KeysOfFile()
