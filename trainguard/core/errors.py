"""What stops an observation: a declaration that is wrong, or a subject that cannot be observed."""

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from traceback import walk_tb
from types import CodeType, FunctionType
from typing import TypeVar

_PACKAGE = str(Path(__file__).parents[1])
_PASSING = set[CodeType]()
# Python's warnings pass by a frame whose file has both of these words in its name.
PASSED_BY = " (importlib._bootstrap)"
T = TypeVar("T")


class DeclarationError(ValueError):
    """
    A declaration or an option is wrong: one sentence with the value, one with the way out.

    `as_option` says the same in the words of the command line, where an argument is an option.
    """

    def __init__(self, told: str, as_option: str = "") -> None:
        super().__init__(told)
        self.as_option = as_option or told


class SubjectError(Exception):
    """
    The subject itself cannot be observed: it returned None, raised, hung, came back detached.

    `sentence` says what it did and `remedy` the way out; the user's own exception, where there is
    one, is the `__cause__` and keeps its traceback whole.
    """

    def __init__(self, sentence: str, remedy: str = "", call: str = "") -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.remedy = remedy
        self.call = call


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ` Did you mean 'x'?` for the known word nearest to `word`, or the list of them."""
    names = sorted(known)
    close = get_close_matches(word, names, n=1, cutoff=0.6)
    if close:
        return f" Did you mean {close[0]!r}?"
    return f" Known: {', '.join(names)}." if names else ""


class Unjudged(Exception):
    """An invariant cannot be judged here, through no fault of the subject: the item is skipped."""


def passes_on(made: T) -> T:
    """
    Return a function or class of ours that stands for something else, and does what that does.

    What C functions raise in it, which have no frame, is no fault of ours, and no warning is told
    of its lines.
    """
    for function in vars(made).values() if type(made) is type else (made,):
        if type(function) is FunctionType:
            function.__code__ = passed_by(function.__code__)
            _PASSING.add(function.__code__)
    return made


def passed_by(code: CodeType) -> CodeType:
    """
    Return code that warnings do not count where they look for the caller to be told of.

    So that `stacklevel` leads to the line that it would lead to without us. Where its source is
    looked up, as for tracebacks, the module that it belongs to has it.
    """
    if code.co_filename.endswith(PASSED_BY):
        return code
    return code.replace(co_filename=code.co_filename + PASSED_BY)


def is_ours(error: BaseException) -> bool:
    """Say whether it was our own code that raised, in the middle of the user's."""
    codes = [frame.f_code for frame, _ in walk_tb(error.__traceback__)]
    return (
        isinstance(error, Exception)
        and bool(codes)
        and codes[-1].co_filename.startswith(_PACKAGE)
        and codes[-1] not in _PASSING
    )
