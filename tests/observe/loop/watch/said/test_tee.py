"""Streams that are listened to: everything passes through untouched, and little is looked at."""

import copy
import io
import os
import pickle
import subprocess
import sys
from contextlib import redirect_stdout
from types import SimpleNamespace

import pytest

from trainguard.core.log_line import LONGEST
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.said.tee import PER_STEP, LineParser, Tee


class Listening:
    """A heard file, and what was heard of it."""

    def __init__(self, file: io.TextIOBase | None = None) -> None:
        self.file = io.StringIO() if file is None else file
        self.recorder = SimpleNamespace(
            steps=0, clock=0, patches=SimpleNamespace(active=True), tick=self.tick
        )
        self.heard: list[tuple[str, float, int]] = []
        self.lines = LineParser(self.recorder, lambda: self.recorder.patches.active, self.tell)
        self.stream = Tee(self.file, self.lines, LineParser.take)

    def tick(self) -> int:
        """Count."""
        self.recorder.clock += 1
        return self.recorder.clock

    def tell(self, numbers, step, clock) -> None:
        """Keep what is told."""
        self.heard += [(number.name, number.value, step) for number in numbers]


def test_a_line_may_come_in_pieces() -> None:
    """A line is read when it ends, with the step at which it began."""
    listening = Listening()
    print("lo", end="", file=listening.stream)
    listening.recorder.steps = 1
    print("ss", 0.5, "acc 0.", sep=" ", end="", file=listening.stream)
    assert listening.heard == []
    print(25, file=listening.stream)
    assert listening.heard == [("loss", 0.5, 0), ("acc", 0.25, 0)]
    assert listening.file.getvalue() == "loss 0.5 acc 0.25\n"


def test_the_last_line_needs_no_end() -> None:
    """What was written last is read when the recording is over."""
    listening = Listening()
    listening.stream.write("loss 0.5")
    listening.lines.finish()
    listening.lines.finish()
    assert listening.heard == [("loss", 0.5, 0)]


def test_a_bar_that_is_drawn_again_says_only_what_is_new() -> None:
    """A progress bar repeats the last loss while time goes by, which is no news."""
    listening = Listening()
    for step, text in enumerate(("loss=0.5, lr=1", "loss=0.5, lr=1", "loss=0.4, lr=1", "done")):
        listening.recorder.steps = step
        listening.stream.write(f"\r 5/9 [00:01, {text}]")
    listening.stream.write("\nloss=0.4\n")
    assert listening.heard == [("loss", 0.5, 0), ("lr", 1.0, 0), ("loss", 0.4, 2), ("loss", 0.4, 3)]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_lines_of_both_kinds_of_ends_are_read(end: str) -> None:
    """Ends of lines as on Windows change nothing."""
    listening = Listening()
    listening.stream.write(f"loss 0.5{end}loss 0.25{end}\nacc 1{end}")
    assert [value for _, value, _ in listening.heard] == [0.5, 0.25, 1.0]


def test_a_line_without_end_is_not_kept() -> None:
    """A line is given up once it is too long, and the next one is read again."""
    listening = Listening()
    for _ in range(LONGEST):
        listening.stream.write("loss 0.5 ")
        assert len(listening.lines._rest) <= LONGEST
    listening.recorder.steps = 1
    listening.stream.write("loss 1\nloss 2\n")
    assert listening.heard == [("loss", 2.0, 1)]


def test_little_is_read_between_two_steps() -> None:
    """After so many characters nothing is read until the next step, and never half a line."""
    listening = Listening()
    line = "loss 0.5\n"
    for _ in range(10 * PER_STEP // len(line)):
        listening.stream.write(line)
    assert len(listening.heard) == PER_STEP // len(line)
    listening.stream.write("grad_norm 10")
    listening.recorder.steps, listening.heard = 1, []
    listening.stream.write("0 loss 5\nloss 7\n")
    assert listening.heard == [("loss", 7.0, 1)]


def test_one_giant_text_is_not_looked_at() -> None:
    """A text of many megabytes is passed on as it is."""
    listening = Listening()
    text = "loss 0.5\n" * 1_000_000
    assert listening.stream.write(text) == len(text)
    listening.stream.write("loss 0.5\n")
    assert listening.heard == []
    listening.recorder.steps = 1
    listening.stream.write("loss 0.25\n")
    assert listening.heard == [("loss", 0.25, 1)]
    assert listening.file.getvalue() == text + "loss 0.5\nloss 0.25\n"


def test_the_stream_is_what_it_was_in_every_respect(tmp_path) -> None:
    """Attributes, bytes, properties, comparisons and copies are those of the original."""
    file = (tmp_path / "out.txt").open("w", encoding="utf-8")
    stream = Listening(file).stream
    assert isinstance(stream, io.TextIOWrapper)
    assert stream.fileno() == file.fileno()
    assert (stream.encoding, stream.mode, stream.isatty()) == ("utf-8", "w", False)
    assert stream == file
    assert file == stream
    assert stream != sys.stderr
    assert {stream, file} == {file}
    assert repr(stream) == repr(file)
    stream.buffer.write(b"\xff\x00loss 9\n")
    stream.flush()
    stream.reconfigure(encoding="latin-1", line_buffering=True)
    stream.writelines(["\xe9 loss 8\n", "b\n"])
    stream.marked = True
    assert file.marked
    del stream.marked
    for impossible in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="TextIOWrapper"):
            impossible(stream)
    with stream as entered:
        assert entered is stream
    assert file.closed
    assert (tmp_path / "out.txt").read_bytes() == b"\xff\x00loss 9\n\xe9 loss 8\nb\n"


@pytest.mark.parametrize("wrong", [b"bytes", None, 3])
def test_what_a_stream_refuses_is_refused(tmp_path, wrong) -> None:
    """Errors of the stream are raised as they were, and nothing is heard."""
    listening = Listening((tmp_path / "out.txt").open("w"))
    with pytest.raises(TypeError, match="must be str"):
        listening.stream.write(wrong)
    listening.stream.close()
    with pytest.raises(ValueError, match="closed file"):
        listening.stream.write("loss 0.5\n")
    assert listening.heard == []


def test_a_stream_that_iterates_does_so_still(tmp_path) -> None:
    """A stream that can be read is read through."""
    (tmp_path / "in.txt").write_text("a\nb\nc\n")
    with (tmp_path / "in.txt").open() as file:
        stream = Listening(file).stream
        assert next(stream) == "a\n"
        assert list(stream) == ["b\n", "c\n"]


def test_captured_output_is_the_same(capsys) -> None:
    """What pytest captures is what was written; the streams are pytest's own again afterwards."""
    before = sys.stdout, sys.stderr
    with Recorder("x"):
        print("loss 0.5")
        print("acc 0.5", file=sys.stderr)
        with redirect_stdout(io.StringIO()) as inner:
            print("loss 0.1")
        assert sys.stdout is not before[0]
    assert (sys.stdout, sys.stderr) == before
    assert sys.stdout is before[0]
    assert capsys.readouterr() == ("loss 0.5\n", "acc 0.5\n")
    assert inner.getvalue() == "loss 0.1\n"


def test_bytes_of_the_process_are_the_same(capfdbinary) -> None:
    """Text, bytes through the buffer and writes to the descriptor come in the order they had."""
    with Recorder("x"):
        sys.stdout.write("a\n")
        sys.stdout.flush()
        sys.stdout.buffer.write(b"\x00\xff\n")
        sys.stdout.buffer.flush()
        os.write(sys.stdout.fileno(), b"c\n")
        subprocess.run(
            [sys.executable, "-c", "print('d')"], stdout=sys.stdout, check=True, timeout=120
        )
        print("e", flush=True)
    assert capfdbinary.readouterr() == (b"a\n\x00\xff\nc\nd\ne\n", b"")


def test_a_stream_of_the_user_stays(capsys) -> None:
    """A script that replaces the stream keeps its own, even if it writes through ours."""
    mine = io.StringIO()
    original = sys.stdout
    try:
        with Recorder("x"):
            ours, sys.stdout = sys.stdout, mine
            print("loss 0.5")
        assert sys.stdout is mine
    finally:
        sys.stdout = original
    print("after", file=ours)
    assert mine.getvalue() == "loss 0.5\n"
    assert capsys.readouterr().out == "after\n"


def test_no_stream_is_no_error(monkeypatch) -> None:
    """Under pythonw there is no sys.stdout at all."""
    monkeypatch.setattr(sys, "stdout", None)
    with Recorder("x"):
        print("loss 0.5")
    assert sys.stdout is None


def put_in_place(stream, mark: str, seen: list[str]) -> None:
    """Replace what writes to a stream by what calls it, as loggers of consoles do."""
    original = stream.write

    def write(text: str) -> int:
        """Write, and take down what was written."""
        written = original(text)
        seen.append(mark + text)
        return written

    stream.write = write


def test_what_writes_can_be_replaced_in_place(tmp_path) -> None:
    """It calls what was there, once; whoever writes to the stream goes through it."""
    listening, seen = Listening((tmp_path / "out.txt").open("w", encoding="utf-8")), []
    stream, file = listening.stream, listening.file
    put_in_place(stream, "1 ", seen)
    print("loss 0.5", file=stream)
    put_in_place(stream, "2 ", seen)
    stream.writelines(["loss 0.25\n"])
    file.write("loss 0.125\n")
    listening.recorder.patches.active = False  # and once the recording is over
    file.write("end\n")
    file.close()
    assert (tmp_path / "out.txt").read_text("utf-8") == "loss 0.5\nloss 0.25\nloss 0.125\nend\n"
    ends = [f"{mark} {text}\n" for text in ("loss 0.25", "loss 0.125", "end") for mark in "12"]
    assert seen == ["1 loss 0.5", "1 \n", *ends]
    assert [value for _, value, _ in listening.heard] == [0.5, 0.25, 0.125]


def test_what_was_put_in_place_is_taken_back(tmp_path) -> None:
    """By the method that was there, or by deleting the other one: it writes as before."""
    listening, seen = Listening((tmp_path / "out.txt").open("w", encoding="utf-8")), []
    stream, file = listening.stream, listening.file
    original = stream.write
    put_in_place(stream, "1 ", seen)
    stream.write = original
    stream.write("loss 0.5\n")
    del stream.write
    stream.write("a\n")
    file.close()
    assert ((tmp_path / "out.txt").read_text("utf-8"), seen) == ("loss 0.5\na\n", [])
    assert [value for _, value, _ in listening.heard] == [0.5]


class Guarded:
    """What stands for a stream, and is equal to it, as tqdm's does."""

    def __init__(self, stream) -> None:
        self.stream = stream

    def __eq__(self, other: object) -> bool:
        """Be the stream in comparisons."""
        return other == self.stream

    def __hash__(self) -> int:
        """Hash as the stream does."""
        return hash(self.stream)


def test_what_stands_for_the_stream_is_asked_too(tmp_path) -> None:
    """In whatever order both are compared; a stranger is another one."""
    with (tmp_path / "out.txt").open("w") as file:
        stream = Listening(file).stream
        assert Guarded(stream) in (stream, sys.stderr)
        assert stream == Guarded(stream)
        assert stream != Guarded(sys.stderr)
        assert stream != 3
