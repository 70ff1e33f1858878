"""Observe a declared run of several processes: what each of them tells, brought together."""

from dataclasses import dataclass

from trainguard.core.settings import Settings
from trainguard.events.base import Event
from trainguard.events.joined import digest, join
from trainguard.events.trace import Trace
from trainguard.observe.ranks.processes import observe_processes
from trainguard.observe.tools.observation import SubjectObservation
from trainguard.subjects.loop import Run


def observe(run: Run, device: str, dtype: str, settings: Settings) -> "RanksObservation":
    """Return the observation of a run of several processes; none is made until it is asked for."""
    return RanksObservation(run, device, dtype, settings)


@dataclass
class RanksObservation(SubjectObservation[Run, Event]):
    """The joined trace of the processes of one run."""

    of, probes = "a run of several processes", ("run",)

    def _observe_probe(self, _probe: str) -> Trace[Event]:
        """Bring together what each process has recorded."""
        traces = observe_processes(self.subject, self.settings.seed)
        self.points += sum(map(len, traces))
        return join([digest(trace, rank, len(traces)) for rank, trace in enumerate(traces)])
