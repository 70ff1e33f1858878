"""What a side may be, and what is said of everything else, before anything runs."""

import pytest

from tests.command.compare.runs import run, write
from trainguard.command.compare.side import side
from trainguard.core.errors import DeclarationError

LOOPS = "import trainguard as tg\ndef train(): ...\nloop = tg.Loop(train)\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return the working directory: a script, loops and a trace are in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "my train.py").touch()
    (tmp_path / "loops.py").write_text(LOOPS)
    write(tmp_path / "a.jsonl", run())
    return tmp_path


def test_a_script_with_its_arguments(folder) -> None:
    """It is split as a shell would; a path with spaces that is there is one."""
    assert side("train.py --name 'a b'").words == ("train.py", "--name", "a b")
    assert side("my train.py").words == ("my train.py",)


def test_a_module(folder) -> None:
    """As python runs it; what is there is the file that it is in."""
    (folder / "package").mkdir()
    (folder / "package" / "__main__.py").touch()
    (folder / "package" / "fit.py").touch()
    assert side("python -m package.fit --lr 1").files == (folder / "package" / "fit.py",)
    assert side("python3 -m package").words == ("-m", "package")
    assert side("python train.py 1").words == ("train.py", "1")
    with pytest.raises(DeclarationError, match=r"no module 'package.fti' .* 'package.fit'"):
        side("python -m package.fti")


@pytest.mark.parametrize("name", ["train", "loop"])
def test_a_loop(folder, name) -> None:
    """A declared loop, or a function that trains."""
    assert side(f"loops.py::{name}").is_loop


def test_traces(folder) -> None:
    """One, or all that are in a folder, by name; other files may stand beside them."""
    assert len(side("a.jsonl").traces) == 1
    write(folder / "old" / "2", run(count=2))
    write(folder / "old" / "1", run(count=1))
    (folder / "old" / "notes.txt").write_text("what I tried")
    assert [len(trace) for trace in side("old").traces] == [1, 2]


REFUSED = {
    "trian.py": "There is no script, loop, trace or log 'trian.py'. Did you mean 'train.py'?",
    "": "A side is empty.",
    "train.py 'oh": '"train.py \'oh" is no command: no closing quotation.',
    "loops.py::lop": "loops.py has no 'lop'. Did you mean 'loop'?",
    "loops.py::loop --lr 1": "loops.py::loop takes no arguments: --lr 1.",
    "bad.py::loop": "bad.py is not Python: ",
    "log.csv": "log.csv says no number by name.",
    "nothing": "nothing is a folder without logs that can be read.",
    "cut.jsonl": "cut.jsonl is no whole trace of this version of trainguard: ",
    "new.jsonl": "new.jsonl is no whole trace of this version of trainguard: ",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_no_side(folder, text) -> None:
    """One sentence each, with the way out where there is one."""
    (folder / "bad.py").write_text("def f(:\n")
    (folder / "nothing").mkdir()
    (folder / "log.csv").write_text("step, loss = 1, 2\n")
    whole = run(count=3).to_text()
    (folder / "cut.jsonl").write_text(whole[: len(whole) // 2])
    (folder / "new.jsonl").write_text(whole + '{"event": "Dream"}\n')
    with pytest.raises(DeclarationError) as refused:
        side(text)
    assert str(refused.value).startswith(REFUSED[text])
