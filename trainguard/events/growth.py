"""The event that tells of something a run keeps more and more of."""

from dataclasses import dataclass

from trainguard.events.base import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class RunGrowth(Event):
    """
    How much of one kind of thing there was, looked at ever more rarely in the course of a run.

    kind: "graphs" (of outputs that were made two optimizer steps ago or earlier), "hooks" (most on
        one module or parameter), "handlers" (most on one logger), "optimizers" (made anew for the
        same parameters, with the state of the last one lost), "history" (nodes behind a loss).
    steps, counts: at which steps of all optimizers was looked, and what there was.
    among: for graphs, how many there would be if none had been let go; for optimizers, how many
        steps each of them made; for history, whether nodes of the look before are among them.
    name, source: of what grew, and of the code that made it.
    """

    kind: str
    steps: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()
    among: tuple[int, ...] = ()
    name: str = ""
    source: str = ""
