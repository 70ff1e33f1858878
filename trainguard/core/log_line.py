"""
The numbers that a line of output says: `step 3 | loss 1.234`, `loss: 0.12`, `{'lr': 5e-05}`.

Only forms that cannot be read in two ways are taken. `loss 1: 0.5` may be the first of two losses
and `3/10` is no number; percentages, dates, times and numbers with a unit are left out. But an
accuracy is a number as `97.5%` too, and as `39/40`.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

LONGEST = 2000  # characters of a line that is read

_FIGURE = r"(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][-+]?\d++)?"
_WORD = r"[A-Za-z_]\w*+(?:[./@-]\w++)*+"
_PAIR = re.compile(
    rf"(?<![\w./@:\\-])(?P<name>{_WORD}(?: {_WORD}){{0,3}})"
    r"(?:(?P<sign>['\"]?\s{0,4}[:=]\s*)|[ \t]+)"
    r"(?:tensor\(|array\(|(?:np\.|numpy\.)?float\d*\(|['\"])?"
    rf"(?P<number>[-+]?(?:{_FIGURE}|(?i:nan|inf(?:inity)?)))"
    r"(?:(?P<percent>\s?%)|/(?P<of>\d++))?"
    # No unit, fraction, date, time, thousands, version, range, calculation or list of numbers.
    r"(?![\w%/^*=+-]|[.,:]\d|\s*(?:%|/|\*|=|->|\+-|\+/-|\u00b1|\u2192))"
    rf"(?!\s*,\s*[-+]?{_FIGURE}\s*(?:[,;)\]]|$)|\s+[-+]?{_FIGURE}(?:[\s,;)\]]|$))"
)
_NUMBERS = re.compile(r"\d|nan|inf", re.IGNORECASE)
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_NOT_OF_TRAINING = (
    "val|valid|validate|validation|validating|eval|evaluate|evaluation|evaluating|test|testing|dev"
    "|best|avg|average|mean|ema|min|max|total|final"
)
_STAMP = re.compile(  # what logging puts before a message: no number, and no word before one
    r"[\[(<]?\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d(?::\d\d(?:[.,]\d{1,9})?)?(?![\d:.,])[\])>]?"
)
# What logging puts before it by itself: `INFO:root:`, or the first letter of INFO.
_LEVEL = re.compile(r"\s*(?:(?:DEBUG|INFO|WARNING|ERROR|CRITICAL):[\w.]+:|I (?=[a-z]))")
_MARK = re.compile(r"\s*\*+\s*$")  # of the best one so far
_HEADING = re.compile(
    rf"(?<![\w/.-])(?:({_NOT_OF_TRAINING})|train|training)(?![\w/-])", re.IGNORECASE
)
_OF_A_SET = re.compile(  # `val 0.41 acc 0.8`, `Test loss 0.41 (acc 0.8)`
    rf"(?:({_NOT_OF_TRAINING})|train|training)(?![a-z])", re.IGNORECASE
)
_COUNTERS = re.compile(
    r"(?:^|[\s._/-])(?:(?:step|epoch|iter|iteration|update|episode|frame|generation)s?"
    r"|(?:mini)?batch(?:es)?|ep|it|itr|round|gen|t|i|n)(?:$|[\s._/-])",
    re.IGNORECASE,
)
_PROGRESS = re.compile(
    r"(?:^|[\s|,])(?:step|epoch|ep|iter|iteration|batch|round) +\d++/\d++$", re.IGNORECASE
)
_COUNT = re.compile(r"\s*\d++[.:]?")  # at the beginning, as of `print(epoch, "val loss", loss)`
_MEASURE = re.compile(  # what may come after it: `12 models averaged 0.5` counts something else
    r"(?:^|[\W_])(?:loss(?:es)?|acc(?:uracy)?|val|valid(?:ation)?|train(?:ing)?|test|eval|dev|lr"
    r"|norm|mse|mae|rmse|auc|f1|ppl|perplexity|reward|return|iou|dice|elbo|nll|kl|error)(?=$|[\W_])",
    re.IGNORECASE,
)
_BEFORE = frozenset("|,;\t[](){}<>:'\"-*#")  # what may stand before `key value`
_AFTER = re.compile(r" *(?:$|[|,;\t()\[\]{}'\":]|- |\. )|  ")
# A unit after a space, and nothing else, as of `val rmse 0.701 MW`; times and bytes say nothing of
# what is learned, and `val 1.2 s` is no loss.
_UNIT = re.compile(
    r" (?!(?:at|by|in|is|of|on|to|[num\u00b5]?s|secs?|mins?|hr?s?|[KMGT]?i?B|it|img)\b)"
    r"[A-Za-z\u00b0\u00b5]{1,4}(?:/[a-z]{1,3})?(?=\s*(?:$|[|,;)\]]|\s\s))"
)
_SECOND = re.compile(r"\s*:\s*[-+.\d]")
_ACCURACY = re.compile(r"(?<![a-z])acc(?:urac(?:y|ies))?s?(?![a-z])", re.IGNORECASE)
_NO_NAME = re.compile(r"(?:^| )(?:after|at|before|by|for|from|in|is|of|than|to|was|with)$")
_JOINTS = ("", ":", "]", ")", "]:", "):", "-", "->", "=>")


class Number(NamedTuple):
    """A number and its name as they were written; `rounding` is half a unit of the last digit."""

    name: str
    value: float
    rounding: float


def numbers_in(line: str) -> Iterator[Number]:
    """Yield the numbers that a line says in a form that cannot be misread."""
    if len(line) > LONGEST or not _NUMBERS.search(line):
        return
    if "\x1b" in line:
        line = _COLOUR.sub("", line)
    stamp = _STAMP.match(line)
    line = line[stamp.end() :] if stamp else line
    line = _MARK.sub("", _LEVEL.sub("", line, count=1) if _LEVEL.match(line) else line)
    end, heading, subject = 0, "", ""
    said: set[str] = set()
    before: re.Match[str] | None = None  # the pair before this one
    is_sound = True  # whether it was taken
    pairs = [
        pair for pair in _PAIR.finditer(line) if not _has_unit(pair) or is_accuracy(pair["name"])
    ]
    starts = {pair.start() for pair in pairs}
    for pair in pairs:
        gap = line[end : pair.start()]
        for found in _HEADING.finditer(gap) if gap else ():
            heading = found[1] or ""
        joined = before is not None and gap.strip() in _JOINTS
        glued = joined and not gap.strip()
        was_sound, is_sound = is_sound, bool(pair["sign"]) or _is_plain(line, pair, starts, glued)
        prefix = _qualifier(before) if joined and before is not None else ""
        before, end = pair, pair.end()
        is_sound = is_sound and (was_sound or not glued)
        if is_sound:
            name = prefix + pair["name"]
            if own := _OF_A_SET.match(name):
                subject = own[1] or ""
            # `train 0.3 acc 0.9 | val 0.4 acc 0.8`: what is said again is of the set before it.
            whose = heading or (subject if name in said else "")
            said.add(name)
            yield Number(f"{whose}/{name}" if whose else name, *_value(pair["number"], pair["of"]))


def is_accuracy(name: str) -> bool:
    """Say whether a name may be that of an accuracy."""
    return _ACCURACY.search(name) is not None


def _has_unit(pair: re.Match[str]) -> bool:
    """Say whether a number is a percentage or a fraction."""
    return pair["percent"] is not None or pair["of"] is not None


def _is_plain(line: str, pair: re.Match[str], starts: set[int], glued: bool) -> bool:
    """Say whether `key value` stands by itself: between separators, or in a row of such pairs."""
    start, end = pair.span()
    before = line[:start].rstrip(" ")
    opened = glued or not before or start - len(before) > 1 or before[-1] in _BEFORE
    opened = opened or _PROGRESS.search(before) is not None
    name = pair["name"]
    opened = opened or (_COUNT.fullmatch(before) is not None and _MEASURE.search(name) is not None)
    # A whole number after three words may be prose: `we stopped after step 12`.
    spaces = 1 + (is_accuracy(name) or not _is_whole(pair["number"]))
    if not opened or name.count(" ") > spaces or _NO_NAME.search(name):
        return False
    unit = _UNIT.match(line, end) if not _is_whole(pair["number"]) else None
    if not unit and not _AFTER.match(line, end) and end + 1 not in starts:
        return False
    # `loss 1: 0.5` is the first of several losses.
    return not (_is_whole(pair["number"]) and _SECOND.match(line, end))


def _qualifier(previous: re.Match[str]) -> str:
    """Return what the number before says of this one: `layer 3 norm 0.5` is no `norm`."""
    if not _is_whole(previous["number"]):
        return ""
    is_counter = _COUNTERS.search(previous["name"])
    return "" if is_counter else f"{previous['name']} {previous['number']} "


def _is_whole(number: str) -> bool:
    """Say whether a number was written without a point or an exponent."""
    return number.lstrip("+-").isdigit()


def _value(text: str, of: str | None) -> tuple[float, float]:
    """Return the number that was written, and half a unit of its last digit; 0 of a fraction."""
    if of is not None and float(of):
        return float(text) / float(of), 0.0
    mantissa, _, exponent = text.lower().partition("e")
    value = float(text)
    if value - value != 0:
        return value, 0.0
    power = int(exponent or 0) - len(mantissa.partition(".")[2])
    return value, 0.5 * 10.0 ** max(-320, min(300, power))
