"""Logs that are damaged, empty or no logs: one sentence each, and never a traceback."""

import codecs
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainguard.core.errors import DeclarationError
from trainguard.events.log import LogPart
from trainguard.events.loop import Evaluation, Step
from trainguard.observe.log import json_lines, mlflow, printed, tables, tensorboard
from trainguard.observe.log.entry import read_log, read_logs
from trainguard.observe.log.row import Lost, figure
from trainguard.report.log_summary import as_rows
from trainguard.subjects.log import Log

REFUSED = {
    "empty.csv": (b"", "is empty"),
    "blank.log": (b"\n \n\n", "is empty"),
    "run.wandb": (b":W&B\x00\x01", "Export it"),
    "model.pt": (b"PK\x03\x04\x00\x00", "neither"),
    "train.log": (b"Downloading the data\nDone.\n", "no number by name"),
    "other.csv": (b"step,width\n1,3\n2,4\n", "loss, rate or norm"),
    "half.json": (b'{"log_history": [{"loss": 1.0}', "no whole JSON document"),
    "empty.json": (b'{"log_history": []}', "no number by name"),
    "trace.txt": (b'{"subject": 3}\n', "no whole trace"),
    "header.csv": (b"step,loss,lr\n", "loss"),
    "train.log.gz": (b"\x1f\x8b\x08\0 step 1 loss 0.5", "Unpack it"),
    "idle.json": (
        b'{"subject": "x", "conditions": {}, "promises": {}}\n',
        "a trace without a training step",
    ),
    "nulls.log": (bytes(9000), "no number by name"),
    "names.csv": (b"t,ce\n1,0.5\n2,0.4\n", "Columns: t, ce. Say which"),
    "more.json": (b'[{"loss": 1.0},\n{"loss": 0.5}] x', "there is more behind its end"),
    "deep.json": (b'{"log_history": [' + b"[" * 5000, "no whole JSON document"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_log_is_refused_in_a_sentence(tmp_path, name) -> None:
    """It says what is wrong with the file, and names it."""
    content, reason = REFUSED[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DeclarationError, match=reason) as error:
        read_logs(Log(tmp_path / name))
    assert name in str(error.value)
    assert "\n" not in str(error.value)


def test_paths_that_lead_nowhere_are_refused(tmp_path) -> None:
    """A file that is not there, a folder without logs, a link that leads to itself."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "folder" / "up").symlink_to(tmp_path / "folder")
    where = (("none", "not there"), ("folder", "without logs"), ("loop", "not there"))
    for name, reason in (*where, ("x" * 5000, "not there"), ("a\0b", "not there")):
        with pytest.raises(DeclarationError, match=reason):
            read_logs(Log(tmp_path / name))


def losses(tmp_path, content: str | bytes, name: str = "train.log") -> list[tuple[int, float]]:
    """Return the steps and losses that a file is read as."""
    file = tmp_path / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return [(e.step, e.loss) for e in read_log(Log(file)) if isinstance(e, Step)]


SPELLINGS = ("nan", "NaN", "NAN", "-nan", "nan(ind)", "1.#QNAN", "-1.#IND", "inf", "-Infinity")


@pytest.mark.parametrize("text", SPELLINGS)
def test_no_number_in_every_spelling_is_read_as_none(tmp_path, text) -> None:
    """In a cell and in a line, whatever language or library wrote it."""
    value = figure(text)
    assert value is not None
    assert value - value != 0
    table = losses(tmp_path, f"step,loss\n1,0.5\n2,{text}\n", "log.csv")
    line = losses(tmp_path, f"step: 1, loss: 0.5\nstep: 2, loss: {text}\n")
    assert [len(table), len(line)] == [2, 2]
    assert all(found[1][1] - found[1][1] != 0 for found in (table, line))


@pytest.mark.parametrize("text", ["", "-", "N/A", "null", "None", "abc", "1,5", "9" * 5000])
def test_a_text_that_is_no_number_is_left_out(tmp_path, text) -> None:
    """A cell without a number says nothing of its row."""
    cell = f'"{text}"'
    assert losses(tmp_path, f"step,loss\n1,0.5\n2,{cell}\n3,0.4\n", "log.csv")[:1] == [(1, 0.5)]


ODD = {
    "half a line at the end": ("step,loss\n1,0.5\n2,0.4\n3,0.", [(1, 0.5), (2, 0.4)]),
    "steps as floats": ("step,loss\n1.0,0.5\n2e0,0.4\n", [(1, 0.5), (2, 0.4)]),
    "no step": ("loss,lr\n0.5,1\n0.4,1\n", [(0, 0.5), (1, 0.4)]),
    "epochs only": ("epoch,loss\n3,0.5\n4,0.4\n", [(3, 0.5), (4, 0.4)]),
    "two runs": ("step,loss\n1,0.9\n2,0.8\n3,0.7\n1,0.6\n2,0.5\n", [(1, 0.6), (2, 0.5)]),
    "filled with nan": ("step,loss\n1,0.5\n2,nan\n3,nan\n4,nan\n5,0.4\n", [(1, 0.5), (5, 0.4)]),
    "a null": ("step,loss\n1,0.5\n2,\0\n3,0.4\n", [(1, 0.5), (3, 0.4)]),
    "decimal commas": ("step;loss\n1;0,5\n2;0,4\n", [(1, 0.5), (2, 0.4)]),
    "a quote that stays open": ('step,loss\n1,"0.5\n2,0.4\n', [(1, 0.5), (2, 0.4)]),
    "rows of any length": ("step,loss,lr\n1,0.5\n2,0.4,1,2,3\n", [(1, 0.5), (2, 0.4)]),
    "returns alone": ("step,loss\r1,0.5\r2,0.4\r", [(1, 0.5), (2, 0.4)]),
    "spaces between": ("# step  loss\n  1  0.5\n  2  0.4\n", [(1, 0.5), (2, 0.4)]),
    "words before printed lines": (
        "step loss\nstep 1 loss 0.5\nstep 2 loss 0.4\n",
        [(1, 0.5), (2, 0.4)],
    ),
    "thousands": ("step 1,001 loss: 0.5\nstep 1,002 loss: 0.4\n", [(1001, 0.5), (1002, 0.4)]),
    "names with what no terminal shows": ("step,\x1b/loss\n1,0.5\n2,0.4\n", [(1, 0.5), (2, 0.4)]),
    "the source in a traceback": (
        'step 1 | loss 0.5\n  File "x.py", line 3\n    fit(loss=9.0)\nstep 2 | loss 0.4\n',
        [(1, 0.5), (2, 0.4)],
    ),
    "a loss alone": ("loss\n0.5\n0.4\n", [(0, 0.5), (1, 0.4)]),
    "a header again": ("step,loss\n1,0.5\nstep,loss\n2,0.4\n", [(1, 0.5), (2, 0.4)]),
    "a clock that goes back": (
        "step,loss,timestamp\n1,0.5,900\n2,0.4,100\n3,0.3,50\n",
        [(1, 0.5), (2, 0.4), (3, 0.3)],
    ),
}


@pytest.mark.parametrize("case", ODD)
def test_odd_tables_are_read_as_far_as_they_go(tmp_path, case) -> None:
    """What is there is read, what is not is not made up."""
    text, rows = ODD[case]
    assert losses(tmp_path, text, "log.csv") == rows


OBJECTS = {
    "whole numbers": ('{"step": 1, "loss": 3}\n', [(1, 3.0)]),
    "a number of no size": ('{"step": 1, "loss": 0.5, "n": 1' + "0" * 400 + "}\n", [(1, 0.5)]),
    "a truth": ('{"step": 1, "loss": 0.5, "ok": true}\n', [(1, 0.5)]),
    "a text": ('{"step": "1", "loss": "0.5"}\n', [(1, 0.5)]),
    "space around": ('  {"step": 1, "loss": 0.5} \r\n', [(1, 0.5)]),
    "more behind it": (
        '{"step": 1, "loss": 0.5}\n{"step": 2, "loss": 0.4} x\n{"step": 3, "loss": 0.3}{}\n',
        [(1, 0.5)],
    ),
}


@pytest.mark.parametrize("case", OBJECTS)
def test_odd_objects_are_read_as_far_as_they_go(tmp_path, case) -> None:
    """One with numbers alone is read faster, and others as ever; half of one is none."""
    text, rows = OBJECTS[case]
    assert losses(tmp_path, text, "log.jsonl") == rows


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
def test_encodings_are_read(tmp_path, encoding) -> None:
    """A mark tells the encoding; bytes that are none are shown as such."""
    text = "step,loss,m\u00fcde\n1,0.5,\u00e9\n2,0.4,x\n"
    assert losses(tmp_path, text.encode(encoding), "log.csv") == [(1, 0.5), (2, 0.4)]


LINES = [f"step {n} | loss 0.{n} | \u00e9\n" for n in (1, 2, 3)]
A, B, C = (line.encode() for line in LINES)
LITTLE, BIG = codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE
MIXED = {
    "Latin": A + LINES[1].encode("latin-1") + b"step 3 | loss 0.3 | \xff\xfe\n",
    "UTF-16 in UTF-8": A + LINES[1].encode("utf-16-le") + C,
    "with its mark, and returns": A + LITTLE + "\r\n".join(LINES[1:]).encode("utf-16-le"),
    "the other one": A + LINES[1].encode("utf-16-be") + C,
    "UTF-8 in UTF-16": LITTLE + LINES[0].encode("utf-16-le") + B + LINES[2].encode("utf-16-le"),
    "UTF-8 in the other one": BIG + LINES[0].encode("utf-16-be") + B + C,
    "nulls where a log was cut": bytes(100_000) + A + B + bytes(30) + C,
}


@pytest.mark.parametrize("case", MIXED)
def test_encodings_that_are_mixed_are_read(tmp_path, case) -> None:
    """As where two processes with other settings write into one file."""
    assert losses(tmp_path, MIXED[case]) == [(1, 0.1), (2, 0.2), (3, 0.3)]


def test_bars_and_colours_are_no_matter(tmp_path) -> None:
    """Returns end lines, as a terminal shows them, and a line of megabytes is cut in pieces."""
    bars = "".join(f"\r {n}/3 [00:01<00:02, loss=0.{n}]" for n in (1, 2, 3))
    text = (
        "x" * 300_000
        + "\n"
        + bars.replace("\r ", "\r 10%|#  | ")
        + "\n\x1b[31mstep 4\x1b[0m loss: 0.4\n"
    )
    assert losses(tmp_path, text)[-1][1] == 0.4


def test_a_counter_of_batches_goes_on_over_epochs(tmp_path) -> None:
    """Rows of `Epoch 1, step 1` come after those of epoch 0."""
    lines = [
        f"Epoch {e} | step {n} | loss {0.9 - e / 10 - n / 100:.2f}\n"
        for e in (0, 1, 2)
        for n in (1, 2, 3)
    ]
    found = losses(tmp_path, "".join(lines))
    assert [step for step, _ in found] == [*range(1, 10)]


def test_parts_of_epochs_are_counted_as_rows(tmp_path) -> None:
    """What is evaluated at epoch 2.0 comes after the row of that epoch, also after a resume."""
    told = []
    for n in range(1, 61):
        rate, epoch = 1e-3 * (1 - n / 60), n / 20
        told.append(f"{{'loss': {2 * 0.97**n:.4f}, 'lr': {rate:.4e}, 'epoch': {epoch}}}\n")
        if n % 20 == 0:
            told[-1] += f"{{'eval_loss': {1.8 * 0.98**n:.4f}, 'epoch': {epoch}}}\n"
    rows = losses(tmp_path, "".join(told[:45] + told[30:]))
    trace = read_log(Log(tmp_path / "train.log"))
    assert [step for step, _ in rows] == [*range(30), *range(45, 75)]
    assert [e.step for e in trace if isinstance(e, Evaluation)] == [19, 54, 74]
    assert [p.first for p in trace if isinstance(p, LogPart)] == [0, 45]
    assert trace.conditions["unit"] == "row"


def test_a_column_that_is_named_goes_before_all_others(tmp_path) -> None:
    """`--column loss=train/nat` is the loss; a name that is not there is refused with all names."""
    file = tmp_path / "log.csv"
    file.write_text("step,loss,train/nat\n1,9,0.5\n2,9,0.4\n")
    trace = read_log(Log(file, columns={"loss": "train/nat"}))
    assert [e.loss for e in trace if isinstance(e, Step)] == [0.5, 0.4]
    for role in ("loss", "step"):
        with pytest.raises(DeclarationError, match="Columns:.* loss, train/nat"):
            read_logs(Log(file, columns={role: "nll"}))


TEXTS = st.one_of(
    st.text(max_size=200),
    st.lists(
        st.sampled_from(
            ("step", "loss", "lr", "=", ":", ",", "\t", "|", "\n", "\r", "1", "-", "nan", "1e999",
             "0.0", "{", "}", "[", '"', "epoch 3", "9/9 [", "\0", "Out of memory", " ")
        ),
        max_size=60,
    ).map("".join),
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(TEXTS.map(lambda text: text.encode("utf-8", "replace")) | st.binary(max_size=300))
def test_no_reader_raises(tmp_path_factory, content) -> None:
    """Whatever a file has in it, each reader yields rows of numbers, or nothing."""
    file = tmp_path_factory.getbasetemp() / "log"
    file.write_bytes(content)
    readers = (
        tensorboard.rows(file),
        mlflow.rows(file),
        *(module.rows(file, {}) for module in (tables, json_lines, printed)),
    )
    for reader in readers:
        for row in reader:
            assert isinstance(row, Lost) or all(type(v) is float for v in row.values.values())
    with suppress(DeclarationError):
        read_logs(Log(file))


DOCUMENTS = {
    "the number of all steps behind the rows": (
        '{"log_history": [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.4}], "max_steps": 9}',
        9,
    ),
    "objects in its rows": (
        '[\n{"step": 1, "loss": 0.5, "x": {"y": {}}}, {"step": 2, "loss": 0.4, "x": {}}, 7]', 0),
    "lists of its own": ('{"loss": [0.5, 0.4],\n"step": [1, 2], "name": "x"}', 0),
    "a list of its own in one line": ('{"step": [1, 2], "loss": [0.5, 0.4]}', 0),
    "more than is read at once": (
        '{"x": "' + "y" * 200_000 + '",\n"history": [{"step": 1, "loss": 0.5}, '
        + '{"loss": "no"}, ' * 9000 + '{"step": 2, "loss": 0.4}]}', 0),
}  # fmt: skip


@pytest.mark.parametrize("case", DOCUMENTS)
def test_documents_are_read_value_by_value(tmp_path, case) -> None:
    """The rows of a document are found wherever they are in it, and what follows them too."""
    text, total = DOCUMENTS[case]
    assert losses(tmp_path, text, "history.json") == [(1, 0.5), (2, 0.4)]
    assert read_log(Log(tmp_path / "history.json")).conditions["total"] == total


CLOCKS = {
    "back once": (lambda n: n - 50 * (n > 20), (21, 1, 59), True),
    "always back": (lambda n: -n, (1, 59, 59), False),
    "durations": (lambda n: 0.3 + n * 7 % 5 / 100, (3, 23, 59), False),
    "never": (lambda n: n, (), True),
}


@pytest.mark.parametrize("case", CLOCKS)
@pytest.mark.parametrize("form", ["{},{},{}\n", "step {} | loss {:.4f} | time {:.3f}\n"])
def test_a_clock_that_goes_back_is_told(tmp_path, form, case) -> None:
    """Once is a clock that was set; what goes back every few rows is none, and tells no pace."""
    clock, told, paces = CLOCKS[case]
    rows = [form.format(n, 2 * 0.97**n, 900 + clock(n)) for n in range(60)]
    (tmp_path / "log").write_text("step,loss,timestamp\n" * (form[0] == "{") + "".join(rows))
    trace = read_log(Log(tmp_path / "log"))
    assert trace.conditions["clock goes back"] == told
    assert any(e.seconds > 0 for e in trace if isinstance(e, Step)) is paces
    words = dict(as_rows(trace)).get("clock", "")
    assert words.startswith(f"goes back at {told[1]} of 59 rows" if told else "")
