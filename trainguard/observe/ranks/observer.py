"""Observe a declared run of several processes: what each of them tells, brought together."""

from dataclasses import dataclass, replace

from trainguard.core.settings import Settings
from trainguard.events.base import Event
from trainguard.events.joined import add_up_world, digest, join
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
        """Bring together what each process has recorded, and the runs of other numbers of them."""
        run, seed = self.subject, self.settings.seed
        worlds = {world: observe_processes(run, seed, world) for world in run.worlds}
        self.points += sum(len(trace) for traces in worlds.values() for trace in traces)
        traces = worlds[run.processes]
        joined = join([digest(trace, rank, len(traces)) for rank, trace in enumerate(traces)])
        if len(worlds) == 1:
            return joined
        sizes = [event for own in worlds.values() for event in add_up_world(own)]
        return replace(joined, events=(*joined.events, *sizes))
