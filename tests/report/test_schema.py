"""The JSON schemas: what is written really keeps to them, and nothing that they do not name."""

import json
import re
import tomllib
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from typer.testing import CliRunner

from tests.forks import command, trainguard_run
from tests.report.test_formats import account
from trainguard.command.cli import app
from trainguard.core.catalogue import find_invariants
from trainguard.judging.verdict import Config, Verdict
from trainguard.report.formats.table import write_accounts
from trainguard.report.schema import findings_schema, settings_schema

TRAIN = """\
import torch

torch.manual_seed(0)
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(8):
    loss = net(torch.randn(16, 4)).square().mean()
    loss.backward()
    optimizer.step()
    print(f"step {step} | loss {loss.item():.4f}")
"""


def checked(told: Any) -> None:
    """Raise where a document has what the schema does not allow, or does not name."""
    schema = findings_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(told, closed(schema))


def closed(schema: Any) -> Any:
    """Return a schema in which objects have no members but those that are named."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: closed(each) for name, each in schema.items()}
    return made | ({"additionalProperties": False} if "required" in schema else {})


def test_what_run_writes(tmp_path) -> None:
    """A run with a finding, an excuse, and a stale one."""
    (tmp_path / "train.py").write_text(TRAIN)
    found = trainguard_run(tmp_path, "train.py").told
    assert found["findings"]
    checked(found)
    excuse = ("--allow", "gradients_start_empty=meant", "--allow", "loss_is_finite=not meant")
    told = trainguard_run(tmp_path, *excuse, "train.py").told
    assert told["excused"]
    assert told["stale"]
    checked(told)


def test_what_diagnose_writes(tmp_path) -> None:
    """Logs of a run."""
    rows = "".join(f"step {n} | loss {2 * 0.9**n if n < 39 else 'nan'}\n" for n in range(40))
    (tmp_path / "train.log").write_text(rows)
    ended = command(tmp_path, "diagnose", "--format", "json", "train.log")
    told = json.loads(ended.stdout)
    assert told["runs"][0]["findings"]
    checked(told)


def test_other_ranks_and_what_is_known() -> None:
    """What several processes have found, what a baseline knows, numbers that JSON lacks."""
    whole = account("x", "", [float("nan"), 1.0])
    made = find_invariants("loop.loss_falls")[0]
    known = Verdict(whole.subject, made, Config(), "known", known=whole.verdicts[0].findings)
    others = ((1, "gradients_agree", "they differ"),)
    told = replace(whole, verdicts=(*whole.verdicts, known), others=others)
    checked(json.loads(write_accounts("json", [told])))


def test_a_document_that_lacks_something_is_refused() -> None:
    """The check can fail."""
    told = json.loads(write_accounts("json", [account("x", "", [1.0])]))
    for name in ("findings", "trace"):
        less = deepcopy(told)
        del less[name]
        with pytest.raises(jsonschema.ValidationError):
            checked(less)
    with pytest.raises(jsonschema.ValidationError):
        checked({**told, "more": 1})


@pytest.mark.parametrize(
    ("table", "fits"),
    [
        ('select = ["loss.*"]\nprofile = "quick"\nstrict = true', True),
        ('dtypes = ["float32", "bfloat16"]\ndevices = ["cuda:1"]\nfiles = ["guard_*.py"]', True),
        ('profile = "fast"', False),
        ('dtypes = ["float8"]', False),
        ("selected = []", False),
    ],
)
def test_settings(table: str, fits: bool, tmp_path: Path) -> None:
    """The schema and the reader of a pyproject.toml allow and refuse the same."""
    (tmp_path / "pyproject.toml").write_text(f"[tool.trainguard]\n{table}\n")
    (tmp_path / "train.py").write_text("")
    assert jsonschema.Draft202012Validator(settings_schema()).is_valid(tomllib.loads(table)) == fits
    refused = "[tool.trainguard]" in command(tmp_path, "run", "train.py").stderr
    assert refused != fits


def test_the_page_shows_a_finding() -> None:
    """The example of docs/json.md is a finding as the schema has it."""
    page = Path(__file__).parents[2] / "docs" / "json.md"
    (example,) = re.findall(r"```json\n(.*?)```", page.read_text(encoding="utf-8"), re.S)
    schema = {**findings_schema(), "anyOf": [{"$ref": "#/$defs/finding"}]}
    jsonschema.Draft202012Validator(schema).validate(json.loads(example))


def test_the_command_prints_them() -> None:
    """Each by its name, and one sentence for any other."""
    assert json.loads(CliRunner().invoke(app, ["schema", "settings"]).output) == settings_schema()
    assert json.loads(CliRunner().invoke(app, ["schema", "findings"]).output) == findings_schema()
    refused = CliRunner().invoke(app, ["schema", "setting"])
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "Known: findings, settings." in refused.stderr
