"""--json: what is written, when, and what other readers of JSON can rely on."""

import pytest

CLIP = "nn.utils.clip_grad_norm_(net.parameters(), 0.01)"  # binds on every step: a note
LEFT_OVER = "gradients_start_empty"  # broken where zero_grad is left out
RARE = "clipping_is_rare"


FINDING = {
    *("invariant", "family", "rank", "summary", "at", "elsewhere", "measured", "allowed", "why"),
    "config",
}


def test_a_finding(folder) -> None:
    """Each finding has its fields, and the full path and the line of the code that did it."""
    folder.trains(zero="")
    assert folder.run("--json", "out.json", "train.py", "--x").returncode == 1
    document = folder.document()
    assert (document["version"], document["script"], document["args"]) == (2, "train.py", ["--x"])
    (finding,) = document["findings"]
    assert set(finding) == FINDING
    assert (finding["invariant"], finding["family"]) == (LEFT_OVER, "loop")
    at = finding["at"]
    assert (finding["rank"], at["line"], at["step"], at["rank"]) == ("broken", 20, 1, None)
    assert at["file"] == str(folder.path / "train.py")
    assert at["words"].startswith("step 1, ")
    assert set(finding["measured"]) == set(finding["allowed"]) == {"value", "unit", "words"}
    assert "`train.py`" in finding["summary"]


def test_nothing_found(folder) -> None:
    """The file is written then too, and holds the numbers of the run."""
    assert folder.run("--json", "out.json", "train.py").returncode == 0
    document = folder.document()
    assert document["findings"] == []
    assert "loop.loss_is_finite" in document["judged"]
    summary = document["trace"]
    assert (summary["steps"], summary["optimizers"]) == (30, {"AdamW": 30})
    assert summary["rates"] == {"AdamW": {"first": [0.01], "last": [0.01]}}
    assert summary["loss"]["first"] > summary["loss"]["last"] > 0
    assert summary["ended"] == "finished"


def test_numbers_that_json_does_not_have(folder) -> None:
    """A loss that is nan is null in the file, not a word that few readers know."""
    folder.trains(before="targets = targets * float('nan')")
    assert folder.run("--json", "out.json", "train.py").returncode == 1
    document = folder.document()
    assert "loss_is_finite" in folder.found()
    assert document["trace"]["loss"]["last"] is None


def test_notes_and_excuses(folder) -> None:
    """Notes are findings of their own rank; what is excused stands apart with its reason."""
    folder.trains(zero="", inside=CLIP)
    folder.run("--json", "out.json", "--allow", f"{LEFT_OVER}=on purpose", "train.py")
    document = folder.document()
    assert RARE in folder.found()
    assert {finding["rank"] for finding in document["findings"]} == {"note"}
    (excused,) = document["excused"]
    assert (excused["invariant"], excused["reason"]) == (LEFT_OVER, "on purpose")


def test_a_script_that_fails(folder) -> None:
    """What was seen until the failure is written."""
    folder.trains(zero="", after="raise LookupError")
    assert folder.run("--json", "out.json", "train.py").returncode == 3
    document = folder.document()
    assert folder.found() == [LEFT_OVER]
    assert document["trace"]["ended"] == "failed"


def test_a_script_that_changes_directory(folder) -> None:
    """The file lies where the command was given, wherever the script went."""
    folder.write("elsewhere/empty", "")
    folder.trains(imports="import os", before="os.chdir('elsewhere')")
    done = folder.run("--json", "out.json", "--trace", "trace.jsonl", "train.py")
    assert done.returncode == 0
    assert (folder.path / "out.json").is_file()
    assert (folder.path / "trace.jsonl").is_file()
    assert [file.name for file in (folder.path / "elsewhere").iterdir()] == ["empty"]


def test_an_old_file_is_replaced_in_one_move(folder) -> None:
    """A file of an earlier run, read only by its link, is replaced; nothing else is left behind."""
    folder.write("results/kept.json", "old")
    (folder.path / "out.json").symlink_to(folder.path / "results" / "kept.json")
    folder.trains(after="print(open('out.json').read())")
    done = folder.run("--json", "out.json", "train.py")
    assert done.stdout.startswith("old\n")
    assert (folder.path / "out.json").is_symlink()
    assert folder.document("results/kept.json")["version"] == 2
    assert {file.name for file in folder.path.iterdir()} == {"out.json", "results", "train.py"}


def test_a_file_that_cannot_be_written(folder) -> None:
    """Where the disk is full, the report is printed all the same, and the exit code tells."""
    done = folder.run("--json", "/dev/full", "train.py")
    assert done.returncode == 2
    assert done.stderr == "/dev/full could not be written: No space left on device.\n"
    assert "30 steps of AdamW" in done.stdout


@pytest.mark.parametrize("device", ["/dev/null", "/dev/fd/2"])
def test_a_device_is_written_to(folder, device) -> None:
    """A device is written to and stays one."""
    done = folder.run("--json", device, "train.py")
    assert done.returncode == 0
    assert ('"version": 2' in done.stderr) == (device == "/dev/fd/2")
