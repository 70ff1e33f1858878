"""The files of `trainguard run`: whole or not at all."""

import json
import os
import subprocess
import sys

import pytest

from trainguard.core.catalogue import catalogue
from trainguard.core.errors import DeclarationError
from trainguard.core.files import check_writable, write_whole
from trainguard.core.finding import Finding
from trainguard.core.measure import at_step, number
from trainguard.events.trace import Trace
from trainguard.judging.verdict import Config, Verdict
from trainguard.report.json import document, render
from trainguard.report.run_summary import summarize_run
from trainguard.subjects.loop import Script

PIPED = {"capture_output": True, "text": True, "timeout": 60}


def test_a_file_that_cannot_be_written_whole(tmp_path) -> None:
    """What was there before stays, and no draft is left behind."""
    file = tmp_path / "out.json"
    file.write_text("old", encoding="utf-8")
    with pytest.raises(UnicodeEncodeError):
        write_whole(file, "new " * 10_000 + "\ud800")
    assert file.read_text(encoding="utf-8") == "old"
    assert os.listdir(tmp_path) == ["out.json"]  # noqa: PTH208


def test_a_draft_of_a_writer_that_was_killed(tmp_path) -> None:
    """It is removed when the file is written the next time; that of one that lives is not."""
    ended = subprocess.run(
        [sys.executable, "-Sc", "import os; print(os.getpid())"], check=True, **PIPED
    )
    left = tmp_path / f".out.json.{ended.stdout.strip()}.trainguard"
    other = tmp_path / f".out.json.{os.getppid()}.trainguard"
    for draft in (left, other):
        draft.write_text("half")
    write_whole(tmp_path / "out.json", "new")
    assert {path.name for path in tmp_path.iterdir()} == {"out.json", other.name}


def test_a_folder_that_went_away(tmp_path) -> None:
    """A folder that the script removed in the meantime is made again."""
    write_whole(tmp_path / "results" / "out.json", "new")
    assert (tmp_path / "results" / "out.json").read_text(encoding="utf-8") == "new"


@pytest.mark.skipif(os.name != "posix", reason="needs links")
def test_a_link_that_leads_to_itself(tmp_path) -> None:
    """It is nothing that could be kept: the file takes its place; any other link stays one."""
    (tmp_path / "out.json").symlink_to(tmp_path / "out.json")
    (tmp_path / "link").symlink_to("whole.json")
    for name in ("out.json", "link"):
        write_whole(tmp_path / name, "new")
        assert (tmp_path / name).read_text(encoding="utf-8") == "new"
    assert (tmp_path / "link").is_symlink()


@pytest.mark.skipif(not hasattr(os, "umask"), reason="needs the modes of Unix")
def test_a_file_has_the_usual_mode(tmp_path) -> None:
    """Others may read it as they may read any file that the user writes."""
    (tmp_path / "plain").touch()
    write_whole(tmp_path / "out.json", "new")
    assert (tmp_path / "out.json").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_where_a_file_can_be(tmp_path, monkeypatch) -> None:
    """A place is checked before the run, and does not depend on where the script goes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").mkdir()
    path = check_writable("--json", (tmp_path / "out.json").relative_to(tmp_path))
    assert path == tmp_path / "out.json"
    with pytest.raises(DeclarationError, match="^--json .* is a folder. Give the name of a file."):
        check_writable("--json", tmp_path / "taken")
    with pytest.raises(DeclarationError, match="there is no folder .*no. Make it first."):
        check_writable("--json", tmp_path / "no" / "out.json")


def written(*findings: Finding) -> dict:
    """Return the document of a script's run with some findings, read back."""
    script = Script("train.py")
    (made,) = (one for one in catalogue("loop") if one.name == "loss_is_finite")
    told = summarize_run(Trace("train", (), {}))
    verdict = Verdict(script, made, Config(), "broken", findings)
    return json.loads(render(document(script, [verdict], told)))


def test_what_had_nothing_to_judge_stands_apart() -> None:
    """It was not judged, and is there with the reason."""
    script, (one, other) = Script("train.py"), catalogue("loop")[:2]
    verdicts = [
        Verdict(script, one, Config(), "passed"),
        Verdict(script, other, Config(), "skipped", reason="no gradient was clipped"),
    ]
    told = json.loads(render(document(script, verdicts, summarize_run(Trace("train", (), {})))))
    assert told["judged"] == [one.key]
    assert told["unjudged"] == {other.key: "no gradient was clipped"}


def test_numbers_and_places_are_fields() -> None:
    """Readers take the value and the step from fields, and the words are there too."""
    found = Finding(
        "it is slow",
        at_step(7) + ", the first",
        "took " + number(0.5, "s"),
        "nothing",
        elsewhere=(at_step(9),),
        source="/a/train.py:3",
    )
    document = written(found)
    (entry,) = document["findings"]
    place = {"file": "/a/train.py", "line": 3, "step": 7, "rank": None, "coordinate": None}
    assert (document["version"], entry["summary"]) == (2, "it is slow")
    assert entry["at"] == {**place, "words": "step 7, the first"}
    assert [(p["step"], p["file"]) for p in entry["elsewhere"]] == [(9, None)]
    assert entry["measured"] == {"value": 0.5, "unit": "s", "words": "took 0.5 s"}
    assert entry["allowed"] == {"value": None, "unit": "", "words": "nothing"}


def test_a_number_that_json_does_not_have() -> None:
    """What is not finite is null, and its words say what it is."""
    (entry,) = written(Finding("it broke", "", number(float("nan"))))["findings"]
    assert entry["measured"] == {"value": None, "unit": "", "words": "nan"}
