"""The sessions of trainguard: each sets up its own environment and needs nothing but nox."""

import os
import shutil
from pathlib import Path

import nox

nox.needs_version = ">=2025.10.14"
nox.options.sessions = ["lint", "tests", "guard"]
# A Python that is not on this machine is skipped; CI asks for each by name, and insists on it.
nox.options.error_on_missing_interpreters = False
nox.options.download_python = "never"

PYTHONS = nox.project.python_versions(nox.project.load_toml("pyproject.toml"))
TORCHES = ("2.4.1", "2.9.1", "2.15.0")  # the oldest supported, one between, the newest
CI = ("-c", "constraints/ci.txt")
# What `wheel` copies: all that the tests read, except the source of the package.
BESIDE_THE_SOURCE = (
    *("tests", "fixtures", "docs", "constraints", "benchmarks", ".ci", ".github"),
    *("pyproject.toml", "conftest.py", "noxfile.py", "README.md", "CHANGELOG.md"),
)


@nox.session
def guard(session: nox.Session) -> None:
    """Run the main job: every invariant on every reference subject."""
    session.install(*CI, "-e", ".")
    session.run("pytest", "--trainguard", "fixtures/healthy", *session.posargs)


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """Run the tests, but for the slow ones, on each Python here."""
    session.install(*CI, "-e", ".[test,frameworks]")
    _run_tests(session, "-m", "not slow and not simulated", "--ignore=tests/third_party")


@nox.session
def slow(session: nox.Session) -> None:
    """Run the slow tests: whole trainings under the commands, and what others published."""
    session.install(*CI, "-e", ".[test,third-party,frameworks]")
    _run_tests(session, "-m", "slow")


@nox.session
def simulated(session: nox.Session) -> None:
    """
    Run what depends on a device on one that is simulated; it is compiled at the first time.

    Where something follows `--`, only the tests that it chooses: no fixtures and no dry run.
    """
    session.install(*CI, "-e", ".[test]", "ninja", "setuptools")
    # Not on several workers: each would have the accelerator compiled.
    one_thread = {"OMP_NUM_THREADS": "1"}
    own = ("tests/simulated", "-rs", "--durations=10")
    session.run("pytest", *own, *session.posargs, env=one_thread)
    if session.posargs:
        return
    if shutil.which(os.environ.get("CXX", "c++")) is None:
        session.skip("there is no compiler for the simulated accelerator")
    # It is there now, also for several workers. All fixtures take them a quarter of an hour.
    whole = {**one_thread, "TRAINGUARD_SIMULATED_WHOLE": "1"}
    fixtures = ("tests/simulated/test_fixtures.py", "-n", "2", "--durations=10")
    session.run("pytest", *fixtures, env=whole)
    healthy = (
        "--trainguard",
        "--trainguard-profile=quick",
        "fixtures/healthy/model",
        "-W",
        "ignore",
    )
    second = ("-p", "tests.simulated.present", "--trainguard-devices=sim:1")
    session.run("pytest", *healthy, *second, env=one_thread)
    dry_run = ("--simulated", "--into", session.create_tmp())
    session.run("python", "-m", "benchmarks.gpu", *dry_run)


@nox.session(python=PYTHONS[0])  # not every Python has a wheel of the oldest torch
@nox.parametrize("torch", TORCHES)
def torch(session: nox.Session, torch: str) -> None:
    """Run the tests with the oldest, a middle and the newest torch."""
    session.install(f"torch=={torch}", "-e", ".[test]")
    _run_tests(session, "--ignore=tests/third_party")


@nox.session(python=PYTHONS[0])
def minimums(session: nox.Session) -> None:
    """Run the tests with the lowest version of each dependency; `tests` has the newest."""
    session.install(*CI, "-c", "constraints/minimums.txt", "-e", ".[test]")
    _run_tests(session, "--ignore=tests/third_party")


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, types and the generated pages, and print the figures of the house."""
    session.install(*CI, "-e", ".[test]", "mypy", "ruff")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")
    session.run("python", "docs/make_catalogue.py", "--check")
    session.run("python", "-m", "benchmarks.house")


@nox.session
def docs(session: nox.Session) -> None:
    """Build the site of the documentation; what it warns of fails."""
    session.install(*CI, "-e", ".", "sphinx", "myst-parser")
    session.run("sphinx-build", "-W", "--keep-going", "-q", "docs", "build/docs")


@nox.session
def wheel(session: nox.Session) -> None:
    """Build the wheel, install it, and run the tests where the source is out of the way."""
    session.install(*CI, "build", "torch")
    built = Path(session.create_tmp()) / "dist"
    # The folder lies in the repository, whose settings pytest would find for runs inside a test.
    session.env.pop("TMPDIR", None)
    shutil.rmtree(built, ignore_errors=True)
    session.run("python", "-m", "build", "--outdir", str(built))
    (package,) = built.glob("*.whl")
    session.install(*CI, f"trainguard[test] @ {package.resolve().as_uri()}")
    away = built.parent / "away"
    shutil.rmtree(away, ignore_errors=True)
    away.mkdir()
    for name in BESIDE_THE_SOURCE:
        _copy(Path(name), away / name)
    session.chdir(away)
    _run_tests(session, "--ignore=tests/third_party")


@nox.session
def bench(session: nox.Session) -> None:
    """Run the benchmarks; benchmarks/RESULTS.md holds the figures and their conditions."""
    session.install(*CI, "-e", ".[test]")
    runnable = (f for f in Path("benchmarks").glob("*.py") if "__main__" in f.read_text("utf-8"))
    for name in session.posargs or sorted(file.stem for file in runnable):
        session.run("python", "-m", f"benchmarks.{name}")


@nox.session
def gpu(session: nox.Session) -> None:
    """Measure all that needs an accelerator; `-- --simulated --into FOLDER` is a dry run."""
    session.install("-e", ".[test]", "ninja", "setuptools")
    session.run("python", "-m", "benchmarks.gpu", *session.posargs)


@nox.session
def timm(session: nox.Session) -> None:
    """Run the tests of timm's schedulers apart: its torchvision wants the CUDA build of torch."""
    session.install(f"torch=={TORCHES[-1]}", "timm", "-e", ".[test]")
    session.run("pytest", "tests/third_party", "-k", "timm", *session.posargs)


def _run_tests(session: nox.Session, *chosen: str) -> None:
    """Run the chosen tests on two workers, and those that the command line of nox chooses."""
    # In small portions: the slow tests stand together, and one worker would get them all. With
    # one thread in each worker: the workers fill the processors already.
    workers, one_thread = ("-n", "2", "--maxschedchunk", "2"), {"OMP_NUM_THREADS": "1"}
    session.run("pytest", *workers, "--durations=30", *chosen, *session.posargs, env=one_thread)


def _copy(source: Path, target: Path) -> None:
    """Copy a file or a folder, if it is there."""
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    elif source.exists():
        shutil.copy(source, target)
