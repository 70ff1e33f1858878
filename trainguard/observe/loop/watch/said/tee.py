"""
A stream that hears what is written to it: everything passes through to the original, untouched.

Lines are put together and handed on within bounds, whatever is printed: nothing is kept beyond one
unfinished line, and no more is looked at between two steps than `PER_STEP` characters.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from trainguard.core.errors import passes_on
from trainguard.core.log_line import LONGEST, Number, numbers_in

if TYPE_CHECKING:
    from trainguard.observe.loop.recorder import Recorder

PER_STEP = 20_000
_BREAK = re.compile(r"([\r\n])")
_MOST_DRAWN = 64

Tell = Callable[[list[Number], int, int], None]  # the numbers of a line, their step and clock


class LineParser:
    """Puts the lines of one stream together and tells of the numbers in them."""

    def __init__(self, recorder: "Recorder", listens: Callable[[], bool], tell: Tell) -> None:
        self.recorder = recorder
        self._listens = listens
        self._tell = tell
        self._rest = ""  # of a line that is not finished yet
        self._torn = False  # whether a part of that line was left out
        self._drawn: dict[str, float] = {}  # what a progress bar said last
        self._redraws = False
        self._step = self._clock = 0
        self._counted, self._left = -1, 0

    def take(self, text: str) -> None:
        """Take in what was written, unless nobody listens at present."""
        if not self._listens():
            self._rest, self._torn = "", not text.endswith("\n")
            return
        if self.recorder.steps != self._counted:
            self._counted, self._left = self.recorder.steps, PER_STEP
        self._left -= len(text)
        if self._left < 0:
            self._rest, self._torn = "", not text.endswith("\n")
            return
        first, *others = _BREAK.split(text)
        self._add(first)
        for mark, piece in zip(others[::2], others[1::2], strict=True):
            self._end(redrawn=self._redraws or mark == "\r")
            self._redraws = mark == "\r"
            self._add(piece)

    def finish(self) -> None:
        """Take what is left as the last line."""
        self._end(redrawn=self._redraws)

    def _add(self, piece: str) -> None:
        """Add to the line, unless it has grown too long to be one that says numbers."""
        if not piece or self._torn:
            return
        if not self._rest:
            self._step, self._clock = self.recorder.steps, self.recorder.tick()
        self._rest += piece
        if len(self._rest) > LONGEST:
            self._rest, self._torn = "", True

    def _end(self, *, redrawn: bool) -> None:
        """Tell of the numbers in the line; a bar that is drawn again says only what is new."""
        line, self._rest, self._torn = self._rest, "", False
        if not line:
            return
        numbers = list(numbers_in(line))
        if redrawn:
            drawn = self._drawn
            numbers = [n for n in numbers if drawn.get(n.name) != n.value]
            room = _MOST_DRAWN - len(drawn)
            drawn.update((n.name, n.value) for n in numbers[: max(0, room)])
        if numbers:
            self._tell(numbers, self._step, self._clock)


@passes_on
class Tee:
    """
    Stands in the place of a text stream such as sys.stdout, and is it in every other respect.

    Once the recording is over it only passes on, for those who have kept hold of it.
    """

    __slots__ = ("__weakref__", "_hear", "_lines", "_original", "_stream")

    def __init__(
        self, stream: Any, lines: LineParser, hear: Callable[[LineParser, str], None]
    ) -> None:
        object.__setattr__(self, "_stream", stream)
        object.__setattr__(self, "_hear", hear)
        object.__setattr__(self, "_lines", lines)
        object.__setattr__(self, "_original", None)

    @property
    def write(self) -> Callable[[str], Any]:
        """What writes to the stream: our own, or what somebody has put in its place."""
        return self._write if self._original is None else self._stream.write

    def _write(self, text: str) -> Any:
        """Write to the stream, then listen."""
        written = (self._original or self._stream.write)(text)
        if isinstance(text, str) and self._lines.recorder.patches.active:
            self._hear(self._lines, text)
        return written

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each of the lines."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        """Pass on whatever else is asked for."""
        return getattr(self._stream, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute of the stream; what takes the place of `write` may call that."""
        original = self._stream.write if name == "write" else None
        setattr(self._stream, name, value)
        if self._original is None and original is not None:
            object.__setattr__(self, "_original", original)

    def __delattr__(self, name: str) -> None:
        """Delete an attribute of the stream."""
        delattr(self._stream, name)

    def __enter__(self) -> "Tee":
        """Enter the stream."""
        self._stream.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        """Leave the stream, which closes it."""
        return self._stream.__exit__(*error)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the stream."""
        return iter(self._stream)

    def __next__(self) -> Any:
        """Return the next line of the stream."""
        return next(self._stream)

    def __eq__(self, other: object) -> Any:
        """Be the stream in comparisons; what stands for it may say so itself, as tqdm's does."""
        return True if other is self or other is self._stream else NotImplemented

    def __hash__(self) -> int:
        """Hash as the stream does."""
        return hash(self._stream)

    def __repr__(self) -> str:
        """Show the stream."""
        return repr(self._stream)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copy and pickle as the stream does."""
        return self._stream.__reduce_ex__(protocol)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """Pass for what the stream is."""
        return type(self._stream)
