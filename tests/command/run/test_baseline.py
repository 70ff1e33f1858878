"""--baseline: today's findings do not fail, new ones do, and mended ones must leave it."""

import json

import pytest

from tests.forks import command

LEFT_OVER = "gradients_start_empty"  # broken where zero_grad is left out
CLIPPED = "torch.nn.utils.clip_grad_norm_(net.parameters(), 1e-9)"
KNOWN = ("--baseline", "known.json", "train.py")


def entries(folder) -> list[str]:
    """Return the invariants in the file."""
    told = json.loads((folder / "known.json").read_text(encoding="utf-8"))
    return [entry["invariant"] for entry in told["findings"]]


def test_a_baseline_from_its_first_day_to_its_last(folder) -> None:
    """It is written, holds although lines move, and must be emptied once all is mended."""
    folder.trains(zero="pass")
    first = folder.run(*KNOWN)
    assert first.returncode == 0, first.stderr
    assert "1 finding is written to known.json: from now on only others fail" in first.stdout
    assert entries(folder.path) == [LEFT_OVER]

    folder.trains(zero="pass", imports="import math\n\n", steps=40)
    held = folder.run("--json", "out.json", "-v", *KNOWN)
    assert held.returncode == 0, held.stderr
    assert "1 finding is known from known.json" in held.stdout
    assert f"known     {LEFT_OVER}: " in held.stdout
    told = folder.document()
    assert [entry["invariant"] for entry in told["known"]] == [LEFT_OVER]
    assert LEFT_OVER not in folder.found()

    folder.trains(imports="import math\n\n")
    mended = folder.run(*KNOWN)
    assert mended.returncode == 1
    assert f"{LEFT_OVER}: `train.py` is mended, and must leave the baseline" in mended.stdout

    assert folder.run("--update-baseline", *KNOWN).returncode == 0
    assert entries(folder.path) == []
    folder.trains(zero="pass")
    assert folder.run(*KNOWN).returncode == 1


def test_what_is_known_stops_nothing(folder) -> None:
    """--fail-fast goes on past it, --live says nothing of it, and --events has no line."""
    folder.trains(zero="pass")
    assert folder.run(*KNOWN).returncode == 0
    held = folder.run("--live", "--fail-fast", "--events", "told.jsonl", *KNOWN)
    assert held.returncode == 0, held.stdout
    assert "certain at step" not in held.stderr
    events = (folder.path / "told.jsonl").read_text().splitlines()  # of notes
    assert LEFT_OVER not in [json.loads(line)["invariant"] for line in events]


def test_a_run_that_is_not_whole(folder) -> None:
    """A script that fails writes no baseline, and mends nothing."""
    folder.trains(zero="pass", after="raise SystemExit(7)")
    failed = folder.run(*KNOWN)
    assert failed.returncode == 3
    assert "known.json was not written: the run is not whole." in failed.stderr
    assert not (folder.path / "known.json").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--update-baseline", "train.py"), "--update-baseline has no file."),
        (("--fail-fast", *KNOWN), "--fail-fast stops before a baseline is whole."),
        (("--baseline", ".", "train.py"), "is a folder."),
        (("--baseline", "train.py", "train.py"), "is no baseline of trainguard"),
        (("--baseline", "gone/known.json", "train.py"), "there is no folder"),
    ],
)
def test_what_cannot_be_meant(folder, words, told) -> None:
    """It is one sentence, nothing is run, and no file is touched."""
    before = (folder.path / "train.py").read_text()
    done = folder.run(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert (folder.path / "train.py").read_text() == before


def test_several_processes_share_one(folder) -> None:
    """What only another process finds is written down, and is known from then on."""
    told = "import os\nRANK = os.environ['RANK']"
    folder.trains(imports=told, zero="if RANK == '0': optimizer.zero_grad()")
    assert folder.run("--ranks", "2", *KNOWN).returncode == 0
    assert LEFT_OVER in entries(folder.path)
    again = folder.run("--ranks", "2", *KNOWN)
    assert again.returncode == 0, again.stdout
    assert "mended" not in again.stdout


def test_logs(tmp_path) -> None:
    """`diagnose` has the same option; several runs share the file."""
    good = [f"step {n} | loss {2.0 * 0.97**n:.4f}\n" for n in range(40)]
    bad = "".join([*good, "step 40 | loss nan\n"])
    for name, text in (("a", bad), ("b", "".join(good))):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.log").write_text(text)
    words = ("diagnose", "--baseline", "known.json", "a", "b")
    assert command(tmp_path, *words).returncode == 0
    assert entries(tmp_path) == ["loss_is_finite"]
    (tmp_path / "b" / "b.log").write_text(bad)
    ended = command(tmp_path, *words)
    assert ended.returncode == 1
    assert "the loss of `b" in ended.stdout
    assert "the loss of `a" not in ended.stdout
    assert "1 finding is known from known.json" in ended.stdout
