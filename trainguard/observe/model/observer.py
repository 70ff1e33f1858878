"""
Observe a declared model: one trace per probe.

A probe is a function `observe(network) -> Iterator[Pass]` of a module of `observe/model/`; it
is called once for each case, inside the session: seeded, silent, on one thread, with gradients,
within the subject's time. See `ModelCase` for what it can do with the model.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from trainguard.core.catalogue import Judge
from trainguard.core.errors import SubjectError
from trainguard.core.finding import Finding
from trainguard.core.settings import Settings
from trainguard.events.trace import Pass, Trace
from trainguard.observe.model import (
    backward,
    evaluation,
    initial,
    isolation,
    lengths,
    relations,
    state,
    variants,
)
from trainguard.observe.model.cases import call, draw
from trainguard.observe.model.model_case import ModelCase
from trainguard.observe.tools.isolation import session
from trainguard.observe.tools.observation import SubjectObservation
from trainguard.subjects.model import Model

Probe = Callable[[ModelCase], Iterator[Pass]]

PROBES: dict[str, Probe] = {
    "initial": initial.observe,
    "backward": backward.observe,
    "samples": isolation.observe_samples,
    "future": isolation.observe_future,
    "padding": isolation.observe_padding,
    "evaluation": evaluation.observe,
    "state": state.observe_state,
    "copies": state.observe_copies,
    "checkpointing": variants.observe_checkpointing,
    "compiled": variants.observe_compiled,
    "precision": variants.observe_precision,
    "devices": variants.observe_devices,
    "single": lengths.observe_batch_of_one,
    "longer": lengths.observe_longer,
    "relations": relations.observe,
}
CASES = {"quick": 1, "ci": 2, "thorough": 6}


def observe(model: Model, device: str, dtype: str, settings: Settings) -> "ModelObservation":
    """Return the observation of a model; nothing runs until a trace is asked for."""
    return ModelObservation(model, device, dtype, settings)


@dataclass
class ModelObservation(SubjectObservation[Model, Pass]):
    """The traces of one model on one device, each observed when first asked for."""

    of, probes, by_device = "a model", PROBES, True

    _networks: list[ModelCase] | SubjectError = field(default_factory=list)

    def shrink(self, finding: Finding, _judge: Judge) -> Finding:
        """Return the finding with the call that shows it."""
        seen = finding.event
        if finding.smallest or not isinstance(seen, Pass) or isinstance(self._networks, Exception):
            return finding
        return replace(finding, smallest=call(self._networks[seen.case], dict(seen.sizes)))

    def _observe_probe(self, probe: str) -> Trace[Pass]:
        """Run one probe in each case, the team's global state kept as it was."""
        with session(self.settings.seed, self.subject.timeout):
            passes = tuple(seen for network in self._prepare() for seen in PROBES[probe](network))
        self.points += len(passes)
        return self.make_trace(passes)

    def _prepare(self) -> list[ModelCase]:
        """Draw the cases and call the model once in each; what stops it is raised each time."""
        if isinstance(self._networks, SubjectError):
            raise self._networks
        if not self._networks:
            try:
                self._networks = self._try_networks()
            except SubjectError as fault:
                self._networks = fault
                raise
        return self._networks

    def _try_networks(self) -> list[ModelCase]:
        """Return the network of every case, each of which was built and called."""
        dtype = torch.float64 if self.dtype == "float64" else torch.float32
        networks = [
            ModelCase(
                self.subject, structure, case, self.device, dtype, self.dtype, self.settings.seed
            )
            for case, structure in enumerate(
                draw(self.subject, CASES[self.settings.profile], self.settings.seed)
            )
        ]
        built: dict[str, nn.Module] = {}
        for network in networks:
            try:
                key = repr(network.structure.hyperparameters)
                if key not in built:
                    built[key] = network.build()
                inputs = network.draw()
                network.objective(network.call(built[key], inputs), inputs)
            except SubjectError as fault:
                fault.call = fault.call or call(network, network.sizes)
                raise
        return networks
