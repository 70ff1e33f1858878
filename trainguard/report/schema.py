"""JSON schemas of what other programs read and write: findings, and `[tool.trainguard]`."""

import inspect
import re
from dataclasses import fields
from typing import Any, Final

from trainguard.core.catalogue import FAMILIES
from trainguard.core.finding import Rank
from trainguard.core.settings import DTYPES, LISTS, PROFILES, Settings
from trainguard.report.json import VERSION

Schema = dict[str, Any]
_DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"
_TEXT: Final[Schema] = {"type": "string"}
_TEXTS: Final[Schema] = {"type": "array", "items": _TEXT}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
_NUMBER: Final[Schema] = {"type": ["number", "null"]}
_MAYBE_TEXT: Final[Schema] = {"type": ["string", "null"]}
_MAYBE_COUNT: Final[Schema] = {"type": ["integer", "null"]}


def findings_schema() -> Schema:
    """Return the schema of what `--json FILE` writes; a later version may add keys."""
    return {
        "$schema": _DRAFT,
        "title": "The findings of trainguard",
        "anyOf": [{"$ref": f"#/$defs/{name}"} for name in ("script", "logs", "session")],
        "$defs": {
            "script": _object(
                version={"const": VERSION},
                script=_TEXT,
                args=_TEXTS,
                **_judged(),
                others=_list(_object(rank=_COUNT, invariant=_TEXT, text=_TEXT)),
                trace=_summary(),
            ),
            "logs": _object(
                version={"const": VERSION},
                args=_TEXTS,
                runs=_list(_object(run=_TEXT, **_judged(), log=_log())),
            ),
            "session": _object(
                version={"const": VERSION},
                args=_TEXTS,
                subjects=_list(
                    _object(
                        subject=_TEXT,
                        kind=_TEXT,
                        **_judged(),
                        faults=_list(_object(invariant=_TEXT, text=_TEXT)),
                        trace={"anyOf": [_summary(), {"type": "null"}]},
                    )
                ),
            ),
            "finding": _object(**_finding()),
            "place": _object(
                file=_MAYBE_TEXT,
                line=_MAYBE_COUNT,
                step=_MAYBE_COUNT,
                rank=_MAYBE_COUNT,
                coordinate=_MAYBE_TEXT,
                words=_TEXT,
            ),
            "measure": _object(value=_NUMBER, unit=_TEXT, words=_TEXT),
        },
    }


def settings_schema() -> Schema:
    """Return the schema of the table `[tool.trainguard]` of a pyproject.toml."""
    told = dict(re.findall(r"^(\w+(?:, \w+)?): (.*)", inspect.getdoc(Settings) or "", re.M))
    told = {name: text for names, text in told.items() for name in names.split(", ")}
    members: dict[str, Schema] = {
        **dict.fromkeys(LISTS, _TEXTS),
        "dtypes": _list({"enum": list(DTYPES)}),
        "profile": {"enum": list(PROFILES)},
        "strict": {"type": "boolean"},
    }
    default = {column.name: column.default for column in fields(Settings)}
    return {
        "$schema": _DRAFT,
        "title": "The settings of trainguard",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            name: {**kind, "description": told[name], "default": _plain(default[name])}
            for name, kind in members.items()
        },
    }


SCHEMAS: Final = {"findings": findings_schema, "settings": settings_schema}


def _judged() -> dict[str, Schema]:
    """Return what is told of all that was judged."""
    finding: Schema = {"$ref": "#/$defs/finding"}
    return {
        "judged": _TEXTS,
        "unjudged": {"type": "object", "additionalProperties": _TEXT},
        "findings": _list(finding),
        "excused": _list(_object(**_finding(), reason=_TEXT)),
        "known": _list(finding),
        "stale": _TEXTS,
    }


def _finding() -> dict[str, Schema]:
    """Return what is told of one finding."""
    place, measure = {"$ref": "#/$defs/place"}, {"$ref": "#/$defs/measure"}
    return {
        "invariant": _TEXT,
        "family": {"enum": list(FAMILIES)},
        "config": _TEXT,
        "rank": {"enum": [rank.value for rank in Rank]},
        "summary": _TEXT,
        "at": place,
        "elsewhere": _list(place),
        "measured": measure,
        "allowed": measure,
        "why": _TEXT,
    }


def _summary() -> Schema:
    """Return what is told of a run in a few numbers."""
    ends = {"anyOf": [_object(first=_NUMBER, last=_NUMBER), {"type": "null"}]}
    rates = _object(first=_list(_NUMBER), last=_list(_NUMBER))
    return _object(
        steps=_COUNT,
        optimizers={"type": "object", "additionalProperties": _COUNT},
        seconds=_NUMBER,
        seconds_per_step=_NUMBER,
        waiting_for_data=_NUMBER,
        loss=ends,
        losses={"type": "object", "additionalProperties": ends},
        gradient_norm=_NUMBER,
        gradient_norm_clipped=_NUMBER,
        rates={"type": "object", "additionalProperties": rates},
        memory=_COUNT,
        evaluations=_COUNT,
        evaluation_loss=ends,
        faults=_TEXTS,
        unprobed=_TEXTS,
        ended={"enum": ["finished", "stopped", "failed", "interrupted"]},
        torch=_TEXT,
        events=_COUNT,
    )


def _log() -> Schema:
    """Return what is told of the logs of a run."""
    best = _object(column=_TEXT, step=_COUNT, value=_NUMBER)
    return _object(
        format=_MAYBE_TEXT,
        files=_TEXTS,
        columns=_TEXTS,
        unit=_MAYBE_TEXT,
        rows=_MAYBE_COUNT,
        clock=_MAYBE_TEXT,
        seconds_per_step=_NUMBER,
        steps_left=_NUMBER,
        schedule=_MAYBE_TEXT,
        best={"anyOf": [best, {"type": "null"}]},
    )


def _object(**members: Schema) -> Schema:
    """Return the schema of an object that has all of these members."""
    return {"type": "object", "properties": members, "required": [*members]}


def _list(item: Schema) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": item}


def _plain(default: Any) -> Any:
    """Return a default as JSON has it."""
    return list(default) if isinstance(default, tuple) else default
