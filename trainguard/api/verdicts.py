"""What `check` returns: a tuple of verdicts that is shown by what was found."""

from trainguard.judging.verdict import Verdict
from trainguard.report.cell import render_cell
from trainguard.report.run_report import judged_text
from trainguard.report.text import render


class Verdicts(tuple[Verdict, ...]):
    """The verdicts of one subject; to look at them in a prompt or a notebook reads as a report."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Count what was judged, and give each note in full."""
        notes = [render(note, verdict) for verdict in self for note in verdict.notes]
        return "\n\n".join([f"{self._name()}: {judged_text(self)}", *notes])

    def _repr_html_(self) -> str:
        """Show the same in a notebook."""
        return render_cell(self._name(), self)

    def _name(self) -> str:
        """Return the name of what was judged."""
        return self[0].subject.name if self else "nothing"
