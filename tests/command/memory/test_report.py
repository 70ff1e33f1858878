"""`trainguard memory` on a small model: what is printed and written, and what it exits with."""

import json
import pickle
import re
from html.parser import HTMLParser

import pytest

WORDS = "guard_words.py::words"
# 50 x 16 words, two layers of 16 x 16 + 16, a head of 50 x 16 + 50: 2,194 numbers of 4 bytes, each
# tensor in blocks of 512 bytes.
PARAMETERS = 3584 + 2 * (1024 + 512) + 3584 + 512


def test_the_report(folder) -> None:
    """It names the sizes, the peak, its moment and line, and what made it up."""
    done = folder.memory(WORDS, "--at", "B=2", "--at", "T=64", "--optimizer", "SGD")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.isascii()
    assert max(map(len, done.stdout.splitlines())) <= 100
    lines = done.stdout.splitlines()
    assert lines[0] == "words: one training step, predicted for cuda on fake tensors"
    assert lines[1] == "  at        B=2, T=64"
    assert re.fullmatch(r"  peak      [\d.]+ KiB, in backward( of `Words\S*`)?, step \d", lines[2])
    assert re.fullmatch(r"  largest   made at model.py:\d+", lines[3])
    rows = dict(re.findall(r"^(\w[\w.*]*)(?: \(\d+\))? +([\d.]+ \w*B) ", done.stdout, re.M))
    assert rows["parameters"] == f"{PARAMETERS / 1024:.2f} KiB"
    assert "optimizer" not in rows  # plain SGD keeps nothing
    assert rows["all"] in lines[2]
    assert "Words.blocks.* (2)" in done.stdout


def test_the_document(folder) -> None:
    """The categories, the modules and the lines each add up to the peak, or less where cut."""
    done = folder.memory(WORDS, "--json", "out.json", "--device", "cpu")
    assert done.exit_code == 0
    told = json.loads((folder.path / "out.json").read_text())
    peak = told["peak"]["bytes"]
    assert told["sizes"] == {"B": 4, "T": 32}
    assert sum(part["at_peak"] for part in told["categories"].values()) == peak
    assert sum(part["at_peak"] for part in told["modules"]) == peak
    assert told["categories"]["parameters"]["highest"] == 2194 * 4
    assert told["categories"]["optimizer"]["highest"] == 2 * 2194 * 4 + 7 * 4  # and a step each
    (head,) = (part for part in told["modules"] if part["module"] == "Words.head")
    assert head["categories"]["parameters"] == (16 * 50 + 50) * 4
    assert head["categories"]["optimizer"] == 2 * (16 * 50 + 50) * 4 + 2 * 4
    course = told["course"]
    assert max(map(sum, course["held"])) == sum(course["held"][course["peak"]]) == peak
    assert [phase for _, phase, _ in course["phases"]].count("backward") == 2
    assert course["held"][-1][course["categories"].index("parameters")] == 2194 * 4


def test_what_fits(folder) -> None:
    """The largest size fits when it is asked for, and one more does not: exit 0 and 1."""
    words = ("--budget", "200 KiB", "--fit", "B", "--json", "out.json")
    done = folder.memory(WORDS, *words)
    assert done.exit_code == 0
    assert "budget    200.00 KiB: the step fits, " in done.stdout
    (fit,) = json.loads((folder.path / "out.json").read_text())["fits"]
    assert f"  fits      B up to {fit['most']}, " in done.stdout
    assert fit["peak"] <= 200 * 1024 < fit["above"]
    assert fit["next"] == fit["most"] + 1
    assert folder.memory(WORDS, "--at", f"B={fit['next']}", *words).exit_code == 1


def test_what_is_looked_for(folder) -> None:
    """The batch and the one other size, unless others are named."""
    words = ("--at", "B=1", "--at", "T=2", "--budget", "1 KiB", "--json", "out.json")
    done = folder.memory(WORDS, *words)
    fits = json.loads((folder.path / "out.json").read_text())["fits"]
    assert [fit["name"] for fit in fits] == ["B", "T"]
    assert [fit["most"] for fit in fits] == [None, None]
    assert "  fits      no B at all; " in done.stdout


def test_an_argument_of_the_factory_fits(folder) -> None:
    """What is looked for may be an argument too, such as the number of layers."""
    words = ("--input", 'words=integer("B T", 0, 49)', "--at", "layers=8", "--at", "width=64")
    done = folder.memory("model:Words", *words, "--budget", "1MiB", "--fit", "layers")
    assert done.exit_code == 0
    assert re.search(r"  fits      layers up to \d+, [\d.]+ KiB; [\d.]+ [KM]iB with", done.stdout)


def test_a_loss_alone(folder) -> None:
    """A loss is one call, forward and backward: there are no parameters."""
    done = folder.memory("guard_words.py::square", "--at", "B=64", "--at", "C=64")
    assert done.exit_code == 0
    assert re.search(r"^inputs +32.00 KiB ", done.stdout, re.M)
    assert "parameters" not in done.stdout


def test_a_loop_and_a_script(folder) -> None:
    """Both are run as they are, silently, and tell the same of the same training."""
    loop = folder.memory("guard_words.py::loop", "--at", "width=64")
    script = folder.memory("train.py", "--", "64")
    assert (loop.exit_code, script.exit_code) == (0, 0)
    assert loop.stdout.startswith("loop: one training step, predicted for cuda on fake tensors\n")
    assert "  at        width=64\n" in loop.stdout
    rows = [re.search(r"^parameters .*", done.stdout, re.M)[0] for done in (loop, script)]
    assert rows[0] == rows[1]
    assert "trained" not in script.stdout + script.stderr
    assert "optimizer" not in re.findall(r"^\w+", script.stdout, re.M)  # plain SGD keeps nothing


def test_an_argument_of_a_loop_fits(folder) -> None:
    """What is looked for may be an argument of a loop that is run."""
    words = ("--at", "width=64", "--budget", "100 KiB", "--fit", "width")
    done = folder.memory("guard_words.py::loop", *words)
    assert done.exit_code == 1
    assert re.search(r"  fits      width up to \d+, [\d.]+ KiB; 10[\d.]+ KiB with", done.stdout)


def test_a_script_that_trains_nothing(folder) -> None:
    """It tells nothing, which is no pass: exit 3."""
    folder.write("idle.py", "import torch\n")
    done = folder.memory("idle.py")
    assert (done.exit_code, done.stdout) == (3, "")
    assert "idle.py could not be followed: it made no optimizer step" in done.stderr


def test_a_function_under_guard(folder) -> None:
    """A function under `@tg.guard` that wants no fixtures is called."""
    done = folder.memory("guard_words.py::test_made")
    assert done.stdout.startswith("test_made: one training step, predicted for cuda")


def test_a_step_that_cannot_be_predicted(folder) -> None:
    """It is measured, which is said, and no other size is tried for real."""
    done = folder.memory("guard_words.py::counted", "--budget", "1GiB")
    assert done.exit_code == 0
    assert done.stdout.startswith("counted: one training step, measured on cpu\n")
    assert "note      on fake tensors it raised DataDependentOutputException" in done.stdout
    assert "fits      not looked for: only predictions are tried at other sizes" in done.stdout


class Page(HTMLParser):
    """Counts the elements of a page, and sees that they are closed."""

    void = ("meta",)

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.counts: dict[str, int] = {}

    def handle_starttag(self, tag, attrs) -> None:
        """Open an element."""
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.open += [tag] if tag not in self.void else []

    def handle_startendtag(self, tag, attrs) -> None:
        """Count an element that closes itself."""
        self.counts[tag] = self.counts.get(tag, 0) + 1

    def handle_endtag(self, tag) -> None:
        """Close an element."""
        assert self.open.pop() == tag


def test_the_page(folder) -> None:
    """It is whole by itself, with an area for each category and a row for each part."""
    pytest.importorskip("jinja2")
    done = folder.memory(
        WORDS, "--html", "out.html", "--json", "out.json", "--budget", "40KiB", "--fit", "B"
    )
    assert done.exit_code == 1
    text, told = (
        (folder.path / "out.html").read_text(),
        json.loads((folder.path / "out.json").read_text()),
    )
    page = Page()
    page.feed(text)
    assert page.open == []
    assert page.counts["polygon"] == len(told["course"]["categories"])
    parts = len(told["categories"]) + len(told["modules"]) + len(told["lines"])
    assert page.counts["tr"] == parts + 3
    assert not re.search(r"https?:", text)
    assert "does not fit" in text


def test_a_name_that_is_no_html(folder) -> None:
    """What the team calls things is text in the page, wherever it stands."""
    pytest.importorskip("jinja2")
    folder.write(
        "odd.py", "import model\nclass Odd(model.Words): pass\nOdd.__name__ = '</script><b>'\n"
    )
    words = ("--input", 'words=integer("B T", 0, 49)')
    assert folder.memory("odd:Odd", *words, "--html", "out.html").exit_code == 0
    text = (folder.path / "out.html").read_text()
    assert "&lt;/script&gt;&lt;b&gt;: one training step" in text
    assert text.count("</script>") == 1


def test_the_picture(folder) -> None:
    """It is a PNG of the size that a page of text has room for, and twice the same."""
    pytest.importorskip("matplotlib")
    assert (
        folder.memory(WORDS, "--png", "one.png", "--budget", "200 KiB", "--fit", "B").exit_code == 0
    )
    assert (
        folder.memory(WORDS, "--png", "two.png", "--budget", "200 KiB", "--fit", "B").exit_code == 0
    )
    one, two = ((folder.path / name).read_bytes() for name in ("one.png", "two.png"))
    assert one[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(one[16:20]) == 1500
    assert one == two


def test_the_snapshot(folder) -> None:
    """The file is a snapshot whose highest moment is the peak, the model built first."""
    done = folder.memory(WORDS, "--snapshot", "out.pickle", "--json", "out.json", "--device", "cpu")
    assert done.exit_code == 0
    trace = pickle.loads((folder.path / "out.pickle").read_bytes())["device_traces"][0]
    held = highest = 0
    for event in trace:
        held += {"alloc": 1, "free_completed": -1}.get(event["action"], 0) * event["size"]
        highest = max(highest, held)
    assert highest == json.loads((folder.path / "out.json").read_text())["peak"]["bytes"]


def test_a_place_that_can_no_longer_be_written(folder, monkeypatch) -> None:
    """The report is printed all the same, and the exit says that a file is missing."""

    def refuse(path, content) -> None:
        """Fail as a full disk does."""
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("trainguard.command.output.write_whole", refuse)
    done = folder.memory(WORDS, "--json", "out.json")
    assert done.exit_code == 2
    assert done.stderr.endswith("out.json could not be written: No space left on device.\n")
    assert done.stdout.startswith("words: one training step")


def test_a_fault_of_our_own(folder, monkeypatch) -> None:
    """It says that it is ours, with the traceback, and exits with 4."""
    monkeypatch.setattr("trainguard.command.memory.command.report", lambda account: 1 / 0)
    done = folder.memory(WORDS)
    assert done.exit_code == 4
    assert done.stderr.startswith("trainguard itself failed: please report it with this traceback")
    assert "ZeroDivisionError" in done.stderr
