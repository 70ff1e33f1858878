"""--select and --ignore, on the command line and in `[tool.trainguard]`."""

from tests.forks import command

LEFT_OVER = "gradients_start_empty"  # broken where zero_grad is left out


def judged(folder, *options) -> list[str]:
    """Run with options and return what was judged."""
    folder.run("--json", "out.json", *options, "train.py")
    return [key.removeprefix("loop.") for key in folder.document()["judged"]]


def test_select(folder) -> None:
    """Only what matches is judged; globs may be repeated, and listed with commas."""
    options = ("--select", "loss_is_finite,gradients_*", "--select", "loop.loss_falls")
    names = judged(folder, *options)
    assert {"loss_is_finite", "loss_falls", LEFT_OVER} <= set(names)
    assert all(name.startswith(("loss_", "gradients_")) for name in names)


def test_ignore(folder) -> None:
    """What matches is not judged, and does not fail."""
    folder.trains(zero="")
    names = judged(folder, "--ignore", f"{LEFT_OVER},loss_*")
    assert "gradients_are_finite" in names
    assert not {LEFT_OVER, "loss_falls"} & set(names)
    assert folder.run("--ignore", LEFT_OVER, "train.py").returncode == 0


def test_the_settings_of_the_working_directory(folder) -> None:
    """`[tool.trainguard]` is read; the command line goes before it."""
    settings = '[tool.trainguard]\nselect = ["loss_falls"]\n'
    folder.write("pyproject.toml", settings)
    assert judged(folder) == ["loss_falls"]
    assert judged(folder, "--select", "loss_is_finite") == ["loss_is_finite"]


def test_the_settings_above_the_working_directory(folder) -> None:
    """`[tool.trainguard]` of the project counts in its folders too."""
    folder.write("pyproject.toml", '[tool.trainguard]\nselect = ["loss_falls"]\n')
    inner = folder.path / "jobs"
    inner.mkdir()
    ended = command(inner, "run", "--json", "out.json", "../train.py")
    assert ended.returncode == 0
    assert folder.document("jobs/out.json")["judged"] == ["loop.loss_falls"]
