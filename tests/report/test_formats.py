"""The formats of a report hold whatever a script, a path or a message may hold."""

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainguard.core.catalogue import find_invariants
from trainguard.core.finding import Finding
from trainguard.events.loop import Step
from trainguard.events.trace import Trace
from trainguard.judging.verdict import Config, Verdict
from trainguard.report import text
from trainguard.report.formats import RunAccount
from trainguard.report.formats.table import FORMATS, write_accounts
from trainguard.report.run_summary import summarize_run
from trainguard.subjects.loop import Script

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), ""
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
LOSSES = st.lists(st.floats(width=32), max_size=20)


def account(summary: str, why: str, losses: list[float]) -> RunAccount:
    """Return what a run with one finding came to."""
    script = Script("train.py")
    made = find_invariants("loop.loss_is_finite")[0]
    finding = Finding(summary, "step 0", "nan", "finite", why=why, source="/home/me/train.py:3")
    verdict = Verdict(script, made, Config(), "broken", (finding,))
    trace = Trace("train.py", tuple(Step(step=i, loss=loss) for i, loss in enumerate(losses)))
    told = summarize_run(trace)
    root = Path("/home/me")
    return RunAccount(
        subject=script, verdicts=(verdict,), told=told, trace=trace, text="told", root=root
    )


@settings(max_examples=30)
@given(TEXTS, TEXTS, LOSSES)
def test_any_words_can_be_written(summary: str, why: str, losses: list[float]) -> None:
    """One annotation is one line, XML and JSON are read again, a page has no tag of theirs."""
    told = account(summary, why, losses)
    written = {name: write_accounts(name, [told]) for name in FORMATS}
    assert len(written["github"].split("\n")) == 1
    assert written["github"].startswith("::error file=train.py,line=3,")
    assert ET.fromstring(written["junit"].encode())[0].get("failures") == "1"
    (log,) = json.loads(written["sarif"])["runs"]
    assert log["results"][0]["message"]["text"].startswith(f"{summary}.")
    assert json.loads(written["json"])["findings"][0]["summary"] == summary
    assert f"<{summary}>" not in written["html"]


def test_no_format_hides_what_another_process_found() -> None:
    """The first process found nothing here; the second one did, and so has an excuse gone stale."""
    whole = account("x", "", [1.0, 0.5])
    made, script = whole.verdicts[0].invariant, whole.subject
    well = Verdict(script, made, Config(), "passed")
    stale = Verdict(script, find_invariants("loop.loss_falls")[0], Config(), "stale", reason="so")
    others = ((1, "gradients_agree", "gradients_agree: they differ\n  at  step 3"),)
    told = replace(whole, verdicts=(well, stale), others=others, text="rank 1:\ngradients_agree")
    for name in FORMATS:
        written = write_accounts(name, [told]).replace("\\_", "_")
        assert "gradients_agree" in written, name
        assert name == "text" or "loss_falls" in written, name
    (log,) = json.loads(write_accounts("sarif", [told]))["runs"]
    assert [result["level"] for result in log["results"]] == ["error", "error"]
    suite = ET.fromstring(write_accounts("junit", [told]).encode())[0]
    assert (suite.get("tests"), suite.get("failures")) == ("3", "2")
    assert [len(case.findall("failure")) for case in suite] == [0, 1, 1]


def places(told: RunAccount) -> tuple[str, str]:
    """Return the file of the first finding, as an annotation and as SARIF tell it."""
    annotation = write_accounts("github", [told]).partition("file=")[2].partition(",")[0]
    (log,) = json.loads(write_accounts("sarif", [told]))["runs"]
    place = log["results"][0]["locations"][0]["physicalLocation"]
    return annotation, place["artifactLocation"]["uri"]


def test_github_is_told_of_files_as_seen_from_its_workspace(monkeypatch) -> None:
    """A project in a folder of the repository is told with it; elsewhere nothing changes."""
    told = account("x", "", [1.0])
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    assert places(told) == ("train.py", "train.py")
    (before,) = json.loads(write_accounts("sarif", [told]))["runs"]
    monkeypatch.setenv("GITHUB_WORKSPACE", "/home")
    assert places(told) == ("me/train.py", "me/train.py")
    (after,) = json.loads(write_accounts("sarif", [told]))["runs"]
    same, again = (log["results"][0]["partialFingerprints"] for log in (before, after))
    assert same == again
    assert "| train.py:3 |" in write_accounts("markdown", [told])
    for elsewhere in ("/home/you", "/home/m", ""):
        monkeypatch.setenv("GITHUB_WORKSPACE", elsewhere)
        assert places(told) == ("train.py", "train.py")


def test_a_message_leads_to_the_site_once_there_is_one(monkeypatch) -> None:
    """Until then, and for invariants of a team's own, the command explains them."""
    (made,) = find_invariants("loop.loss_is_finite")
    assert text.read_more(made) == "trainguard explain loss_is_finite"
    monkeypatch.setattr(text, "_find_site", lambda: "https://example.org/docs")
    address = "https://example.org/docs/invariants/loop.loss_is_finite.html"
    assert text.read_more(made) == address
    assert address in write_accounts("html", [account("x", "", [1.0])])
    own = replace(made, judge=test_a_message_leads_to_the_site_once_there_is_one)
    assert text.read_more(own) == "trainguard explain loss_is_finite"


def test_a_long_run_is_drawn_with_its_spikes() -> None:
    """A curve is thinned to what a page can show; its highest and lowest points stay."""
    losses = [1.0] * 100_000
    losses[54_321] = 7.0
    page = write_accounts("html", [account("x", "", losses)])
    assert "<span>7</span><span>1</span>" in page
    assert len(page) < 100_000
    assert ",4.0 " in page  # the spike is at the top


@pytest.mark.skipif(not BROWSER, reason="there is no Chromium")
def test_a_browser_shows_the_page(tmp_path: Path) -> None:
    """Curves and findings are there, each of them with a size, and the console is empty."""
    page = write_accounts(
        "html", [account(f"the loss < 0 & nan {'x' * 300}", "", [3.0, 2.0, 1.5, 1.0])]
    )
    counted = """<script>
      const shown = what => [...document.querySelectorAll(what)].filter(
        each => each.getBoundingClientRect().width > 100);
      const wide = document.documentElement.scrollWidth > innerWidth;
      const kinds = ["polyline", ".finding > dl", ".finding h3"];
      document.title = [...kinds.map(what => shown(what).length), wide].join(" ");
    </script>"""
    seen, console = shown(page.replace("</body>", f"{counted}</body>"), tmp_path)
    assert "<title>1 1 1 false</title>" in seen
    assert "the loss &lt; 0 &amp; nan" in seen
    assert console == []
    assert shown(f"{page}<script>lost()</script>", tmp_path)[1] != []


def shown(page: str, folder: Path) -> tuple[str, list[str]]:
    """Return what a browser makes of a page, and the lines of its console."""
    file = folder / "page.html"
    file.write_text(page, encoding="utf-8")
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr")
    done = subprocess.run(
        [BROWSER, *options, f"--user-data-dir={folder}/own", "--dump-dom", file.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]
