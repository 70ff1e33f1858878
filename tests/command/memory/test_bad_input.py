"""What cannot be meant: one sentence on stderr, exit 2, and nothing is run."""

from importlib.util import find_spec

import pytest

HOW = "Give module:factory, guard_file.py::subject, or a script."
WORDS = "guard_words.py::words"
FACTORY = ("model:Words", "--input", 'words=integer("B T", 0, 49)')
WRONG = {
    ("nonsense",): f"TARGET 'nonsense' names nothing. {HOW}",
    (":Words",): f"TARGET ':Words' names nothing. {HOW}",
    ("no.py",): f"There is no script 'no.py' in {{here}}. {HOW}",
    ("no.py::words",): f"There is no file 'no.py' in {{here}}. {HOW}",
    ("guard_words.py::word",): "guard_words.py declares no subject 'word'. Did you mean 'words'?",
    ("guard_none.py",): "guard_none.py declares no subject.",
    ("guard_two.py",): (
        "guard_two.py declares 2 subjects: guard_two.py::a, guard_two.py::b. Name one of them."
    ),
    ("guard_words.py::rate",): (
        "guard_words.py::rate is a tg.Schedule, which makes no training step."
        " Give a tg.Model, a tg.Loss or a tg.Loop."
    ),
    ("guard_words.py::test_wants",): (
        "guard_words.py::test_wants wants 'tmp_path', a fixture, which only pytest has."
        " Declare the subject at module level."
    ),
    ("modle:Words",): "There is no module 'modle', from {here}.",
    ("model:Wrods",): "model has no 'Wrods'. Did you mean 'Words'?",
    ("model:pairs",): f"model:pairs is {{{{1: 2}}}}, which is no model and makes none. {HOW}",
    ("model:Words",): (
        "model:Words is a model whose inputs are not declared."
        " Declare each: --input 'x=real(\"B 16\", -1, 1)', as in a guard file."
    ),
    (*FACTORY, "--input", "x=real(2"): (
        "--input 'x=real(2' cannot be read. Write --input 'x=real(\"B 16\", -1, 1)'."
    ),
    (*FACTORY, "--input", "words"): (
        "--input 'words' declares no input. Write --input 'x=real(\"B 16\", -1, 1)'."
    ),
    (*FACTORY, "--input", 'x=intger("B", 0, 1)'): (
        "--input 'x=intger(\"B\", 0, 1)' has no domain 'intger'. Did you mean 'integer'?"
    ),
    (*FACTORY, "--input", 'x=tg.real("B", 1, 0)'): (
        "tg.real got an empty range: low=1 is not below high=0. Swap them: tg.real(..., 0, 1)."
    ),
    (*FACTORY, "--input", "x=choice(1)"): "--input 'x=choice(1)' is no tensor. Give it a shape.",
    (*FACTORY, "--input", 'wrods=real("B", 0, 1)'): (
        "Words takes no input 'wrods'. Did you mean 'words'?"
    ),
    (*FACTORY, "--loss", "next_word"): (
        "--loss 'next_word' names nothing. Write --loss module:function."
    ),
    (*FACTORY, "--loss", "model:next_wrod"): (
        "model has no 'next_wrod'. Did you mean 'next_word'?"
    ),
    (WORDS, "--input", 'words=integer("B T", 0, 49)'): (
        "guard_words.py::words is declared already, so that --input and --loss have no say."
        " Leave them out."
    ),
    (WORDS, "--timeout", "0"): "--timeout 0 leaves no time. Give a number of seconds.",
    (WORDS, "--at", "T"): "--at 'T' says no size. Write --at T=1024.",
    (WORDS, "--at", "T=0"): "--at T=0 is no size. Give a whole number above zero.",
    (WORDS, "--at", "T=long"): "--at T=long is no size. Give a whole number above zero.",
    (WORDS, "--at", "layer=4"): (
        "--at layer=4: words has neither a dimension nor an argument 'layer'."
        " Did you mean 'layers'?"
    ),
    (WORDS, "--optimizer", "AdamWW"): (
        "--optimizer 'AdamWW': torch.optim has no 'AdamWW'. Did you mean 'AdamW'?"
    ),
    (WORDS, "--optimizer", "lyon:Lion"): "--optimizer 'lyon:Lion': there is no module 'lyon'.",
    (WORDS, "--optimizer", "SGD(0.1)"): (
        "--optimizer 'SGD(0.1)' gives no names. Write SGD(momentum=0.9)."
    ),
    (WORDS, "--optimizer", "SGD(lr"): (
        "--optimizer 'SGD(lr' cannot be read. Write --optimizer SGD(momentum=0.9)."
    ),
    (WORDS, "--dtype", "float8"): "--dtype has 'float8'. Did you mean 'float64'?",
    (WORDS, "--device", "gpu"): "--device has 'gpu'. Did you mean 'cpu'?",
    (WORDS, "--checkpoint"): (
        "--checkpoint: words declares none. Say how: tg.Model(checkpoint=...)."
    ),
    (WORDS, "--budget", "24 gigs"): (
        "--budget='24 gigs' has no unit of memory. Did you mean 'GiB'?"
    ),
    (WORDS, "--budget", "0"): "--budget='0' cannot be kept. Give an amount of at least 1 B.",
    (WORDS, "--fit", "T"): "--fit T asks what fits, and not into what. Add --budget 24GiB.",
    (WORDS, "--fit", "L", "--budget", "1GiB"): "--fit L is no size of words. Known: B, T.",
    (WORDS, "--json", "no/out.json"): (
        "--json {here}/no/out.json: there is no folder {here}/no. Make it first."
    ),
    (WORDS, "--json", "out", "--html", "./out"): (
        "out is given twice. Give each file a name of its own."
    ),
    ("train.py", "--json", "train.py"): (
        "train.py is given twice. Give each file a name of its own."
    ),
    (WORDS, "--snapshot", "."): "--snapshot {here} is a folder. Give the name of a file.",
    ("train.py", "--dtype", "bfloat16"): (
        "--dtype says nothing about train.py, a training that is run as it is. Declare its model,"
        " as a tg.Model."
    ),
    ("train.py", "--at", "width=3"): "--at width: train.py takes no argument 'width'.",
    ("guard_words.py::loop", "--at", "wdith=3"): (
        "--at wdith: loop takes no argument 'wdith'. Did you mean 'width'?"
    ),
    ("guard_words.py::loop", "--loss", "model:next_word"): (
        "--loss says nothing about loop, a training that is run as it is. Declare its model, as a"
        " tg.Model."
    ),
    (WORDS, "--", "--epochs", "3"): (
        "guard_words.py::words is no script, and takes no arguments: '--epochs'. Leave it out."
    ),
}


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
def test_what_cannot_be_meant(folder, words) -> None:
    """It is refused with its sentence before anything is run."""
    folder.write("guard_none.py", "import trainguard as tg\n")
    folder.write("guard_two.py", "from guard_words import words as a, square as b\n")
    done = folder.memory(*words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == WRONG[words].format(here=folder.path) + "\n"


@pytest.mark.parametrize(("option", "library"), [("--png", "matplotlib"), ("--html", "jinja2")])
def test_a_library_that_is_not_there(folder, monkeypatch, option, library) -> None:
    """What a file needs is said before the step is followed, not after."""
    without = {library: None}
    monkeypatch.setattr(
        "trainguard.core.files.find_spec",
        lambda name: without.get(name, find_spec(name)),
    )
    done = folder.memory("guard_words.py::words", option, "out")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == (
        f"{option} needs {library}, which is not installed."
        " Install it: pip install 'trainguard[report]'.\n"
    )


def test_a_step_that_hangs(folder) -> None:
    """It ends after `--timeout`, and the remedy is an option that the command has."""
    folder.write("slow.py", "import time\nfrom torch import nn\n\n\nclass Slow(nn.Linear):\n"
                 "    def forward(self, x):\n        time.sleep(60)\n")  # fmt: skip
    inputs = ("--input", 'x=real("B 4", -1, 1)', "--at", "in_features=4", "--at", "out_features=2")
    done = folder.memory("slow:Slow", *inputs, "--timeout", "0.5")
    assert (done.exit_code, done.stdout) == (3, "")
    assert "still running after 0.5 seconds" in done.stderr
    assert "with --timeout <seconds>" in done.stderr


def test_a_guard_file_that_raises(folder) -> None:
    """The team's own traceback is shown, and exit 3: it is no wrong usage."""
    folder.write("guard_bad.py", "import trainguard\nopen('nowhere')\n")
    done = folder.memory("guard_bad.py::x")
    assert (done.exit_code, done.stdout) == (3, "")
    first, *rest = done.stderr.splitlines()
    assert first == (
        "guard_bad.py::x could not be followed: guard_bad.py raised FileNotFoundError while it"
        " was imported."
    )
    assert rest[-1].startswith("FileNotFoundError: ")
    assert "trainguard/memory" not in done.stderr


def test_a_module_that_raises(folder) -> None:
    """A module on the way that is not there is told as what failed, not as a wrong TARGET."""
    folder.write("late.py", "import no_such_library\n")
    done = folder.memory("late:Words")
    assert done.exit_code == 3
    assert "late raised ModuleNotFoundError while it was imported.\n" in done.stderr


def test_a_model_that_raises(folder) -> None:
    """What it raises on real tensors is told with its line."""
    done = folder.memory("guard_words.py::broken")
    assert (done.exit_code, done.stdout) == (3, "")
    assert done.stderr.startswith("guard_words.py::broken could not be followed: ")
    assert "return self.head(words.float())" in done.stderr
