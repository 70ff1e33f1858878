"""--format: what other programs read of a run."""

import json
import re
from xml.etree import ElementTree as ET

import pytest

CLIP = "nn.utils.clip_grad_norm_(net.parameters(), 0.01)"  # binds on every step: a note
LEFT_OVER = "gradients_start_empty"  # broken where zero_grad is left out
FILES = {
    name: f"out.{name}" for name in ("github", "html", "json", "junit", "markdown", "sarif", "text")
}


def test_all_formats_tell_of_one_run(folder) -> None:
    """Each has the finding at its line and the note; the report is printed all the same."""
    folder.trains(zero="", inside=CLIP)
    asked = [word for name, file in FILES.items() for word in ("--format", f"{name}={file}")]
    run = folder.run(*asked, "train.py")
    assert run.returncode == 1
    text = {name: (folder.path / file).read_text(encoding="utf-8") for name, file in FILES.items()}

    assert text["text"].strip() in run.stdout
    assert LEFT_OVER in folder.found("out.json")
    annotations = text["github"].splitlines()
    assert annotations[0].startswith(
        f"::error file=train.py,line=20,title=trainguard%3A {LEFT_OVER}::"
    )
    assert any(a.startswith("::notice file=train.py,line=") for a in annotations)
    (log,) = json.loads(text["sarif"])["runs"]
    first = log["results"][0]
    assert (first["ruleId"], first["level"]) == (f"loop.{LEFT_OVER}", "error")
    place = first["locations"][0]["physicalLocation"]
    assert (place["artifactLocation"]["uri"], place["region"]["startLine"]) == ("train.py", 20)
    assert {r["ruleId"] for r in log["results"]} <= {
        r["id"] for r in log["tool"]["driver"]["rules"]
    }
    suite = ET.fromstring(text["junit"].encode())[0]
    cases = {case.get("name"): case for case in suite}
    assert suite.get("failures") == "1"
    assert LEFT_OVER in (cases[f"loop.{LEFT_OVER}"].find("failure").text or "")
    assert int(suite.get("skipped") or 0) == sum(c.find("skipped") is not None for c in suite) > 0
    assert f"| broken | {LEFT_OVER} | train.py:20 | ".replace("_", "\\_") in text["markdown"]
    assert text["markdown"].count(f"\n{text['text'].strip()}\n~~~") == 1
    assert not re.search(r"<script|https?://", text["html"])
    assert "polyline" in text["html"]
    assert text["html"].count('<section class="card finding"') == 1


def test_one_format_is_printed_in_place_of_the_report(folder) -> None:
    """What another program reads has nothing else in it: the script prints to stderr."""
    folder.trains(after="print('done')", inside="print(step)")
    run = folder.process("--format", "json", "train.py")
    assert run.returncode == 0
    assert json.loads(run.stdout)["findings"] == []
    assert run.stderr.splitlines() == [*map(str, range(30)), "done"]
    run = folder.process("--format", "github", "train.py")
    assert run.stdout.splitlines() == [*map(str, range(30)), "done"]


@pytest.mark.slow
def test_annotations_on_github(folder) -> None:
    """In a workflow of GitHub they follow the report by themselves."""
    folder.trains(zero="")
    run = folder.process("train.py", env={"GITHUB_ACTIONS": "true"})
    assert run.returncode == 1
    assert run.stdout.splitlines()[-1].startswith("::error file=train.py,line=20,")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("yaml", "'yaml' is no format. Known: text, json, github, sarif, junit, html, markdown."),
        ("html=", "'html=' names no file. Write html=<file>."),
        ("json=nowhere/a.json", "Make it first."),
        ("json=train.py", "train.py is given twice."),
    ],
)
def test_bad_formats(given: str, told: str, folder) -> None:
    """One sentence, before anything is run."""
    run = folder.run("--format", given, "train.py")
    assert run.returncode == 2
    assert told in run.stderr.replace("\n", " ")
