"""A script runs as python runs it: same names, same paths, same output, same numbers."""

import math
import os
import subprocess
import sys

import pytest

# All that a script can see of how it was started.
LOOK = """\
import os, pickle, sys
import beside
main = sys.modules["__main__"]
class Held: pass
seen = {
    "name": __name__, "file": __file__, "spec": getattr(__spec__, "name", None),
    "package": __package__, "loader": type(__loader__).__name__, "doc": __doc__,
    "argv": sys.argv, "path": sys.path, "cwd": os.getcwd(), "beside": beside.__file__,
    "main": vars(main) is globals(), "pickled": type(pickle.loads(pickle.dumps(Held()))) is Held,
    "globals": sorted(set(globals()) - {"__annotations__"}), "hook": sys.excepthook.__module__,
}
print(seen)
"""


@pytest.fixture
def looking(folder):
    """Return the folder with scripts that tell how they were started."""
    folder.write("src/beside.py", "")
    folder.write("src/look.py", '"""Look around."""\n' + LOOK + folder.training())
    folder.write("pkg/__init__.py", "")
    folder.write("pkg/__main__.py", LOOK + folder.training())
    folder.write("pkg/work.py", LOOK + folder.training())
    folder.write("beside.py", "")
    (folder.path / "link.py").symlink_to("src/look.py")
    return folder


@pytest.mark.parametrize(
    "words",
    [
        ["src/look.py", "--help", "-m", "x", "--", "--steps", "3"],
        ["./src/../src/look.py"],
        ["link.py"],
        ["-m", "pkg.work", "--help", "-m", "x"],
        ["-m", "pkg"],
    ],
    ids=" ".join,
)
def test_a_script_sees_what_it_sees_under_python(looking, words) -> None:
    """Name, file, arguments, paths, globals: all as under python."""
    plain = looking.python(*words)
    done = looking.run(*words)
    assert (plain.returncode, done.returncode) == (0, 0), plain.stderr + done.stderr
    assert done.stdout.partition("\n")[0] == plain.stdout.strip()


def test_without_the_folder_on_the_path(looking) -> None:
    """Where python is told not to put the script's folder on the path, it is not put there."""
    safe = {"PYTHONSAFEPATH": "1"}
    plain = looking.python("src/look.py", env=safe)
    done = looking.python("-m", "trainguard", "run", "src/look.py", env=safe)
    assert "No module named 'beside'" in plain.stderr
    assert done.returncode == 3
    assert done.stderr == plain.stderr


def test_the_command(folder) -> None:
    """The installed command does the same as `python -m trainguard`."""
    command = os.path.join(os.path.dirname(sys.executable), "trainguard")  # noqa: PTH118, PTH120
    done = subprocess.run(
        [command, "run", "train.py"],
        cwd=folder.path,
        env=folder.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "30 steps of AdamW" in done.stdout


def test_no_such_module(folder) -> None:
    """A module that is not there is one sentence; a file in its place is recognised."""
    folder.write("pkg/__init__.py", "")
    here = folder.path
    missing = ("nothing", "pkg.nothing", "no.such.thing", "train.py")
    told = {
        **{name: f"There is no module {name!r} to run, from {here}." for name in missing},
        "pkg": "pkg is a package without __main__.py. Give a module in it.",
        "math": f"math has no Python code to run: {math.__file__}.",
    }
    told["train.py"] += " Leave out -m to run a file."
    for name, sentence in told.items():
        done = folder.process("-m", name)
        assert (done.returncode, done.stderr) == (2, sentence + "\n")


def test_a_package_that_fails(folder) -> None:
    """What the package of a module raises is the script's failure, and told as such."""
    folder.write("pkg/__init__.py", "import no_such_thing\n")
    folder.write("pkg/work.py", folder.training())
    done = folder.process("-m", "pkg.work")
    assert done.returncode == 3
    assert done.stderr.endswith("ModuleNotFoundError: No module named 'no_such_thing'\n")
    assert "trainguard" not in done.stderr


def test_the_numbers_are_the_same(folder) -> None:
    """A recorded run is bit for bit the run that it would have been, random streams included."""
    after = (
        "import hashlib, random\n"
        "state = b''.join(p.detach().numpy().tobytes() for p in net.parameters())\n"
        "print(hashlib.sha256(state).hexdigest(), torch.rand(3).tolist())\n"
        "random.seed(1)\nprint(random.random())"
    )
    folder.trains(after=after)
    done = folder.process("train.py")
    assert done.stdout.partition("\n\n==")[0] == folder.python("train.py").stdout.strip()


WARNS = """\
narrow = nn.functional.mse_loss(net(features), targets[:, 0])
nn.functional.softmax(features)
nn.functional.l1_loss(net(features), targets[:, 0], reduce=False)
warnings.warn("a step")
"""


def test_the_warnings_are_the_same(folder) -> None:
    """Each is told of the line that it is told of under python, and as often."""
    folder.trains(imports="import warnings", inside=WARNS, steps=150)
    plain, done = folder.python("train.py"), folder.process("train.py")
    assert plain.stderr.count("Warning: ") == 5
    assert done.stderr == plain.stderr
