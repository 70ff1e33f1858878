"""The events of checkpoints: how a run that was killed went on, and what became of its files."""

from dataclasses import dataclass
from math import nan

from trainguard.events.base import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption(Event):
    """
    A run that was killed, and the new process that went on from its files.

    saved: how many optimizer steps had been made when the newest checkpoint was written.
    began: how many had been made where the new process went on, as its parameters tell; 0 where it
        began anew, -1 where they are those of no moment of the run that was not interrupted.
    newer: a checkpoint of the same kind with a higher number that was there and was not read.
    made: how many steps the new process made. left: how many were left for it to make.
    ended: whether the run that was not interrupted came to its end by itself.
    error: what the new process raised; source: where in the team's code.
    limit, size: of a process that was killed in the middle of a save, the bytes that it had
        written of a file, and the size that the file should have got; 0 for any other.
    """

    saved: int
    began: int = 0
    newer: str = ""
    made: int = 0
    left: int = 0
    ended: bool = False
    error: str = ""
    source: str = ""
    limit: int = 0
    size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Part(Event):
    """
    One part of a training's state, as it stood before the first step after a resume.

    kind: "parameters", "buffers", "optimizer", "average", "scaler", "plateau", "generator".
    name: of the model, the optimizer, the average, the generator.
    same: whether it is as in the run that was not interrupted.
    count, of: how many of its tensors or numbers differ, out of how many; first: one of those.
    """

    kind: str
    name: str = ""
    same: bool = True
    count: int = 0
    of: int = 0
    first: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure(Event):
    """
    The first step at which a resumed run is not what it would have been.

    quantity: "loss", "batch", "rate", "parameters". step: counted from the beginning of training;
    -1 where nothing differs. after: how many steps of the resumed run came before it.
    measured, reference: in the resumed run and in the other; of a batch, `measured` is the step of
    the other run that had the same one, -1 where none had. compared: how many steps were.
    """

    quantity: str
    step: int = -1
    after: int = 0
    measured: float = nan
    reference: float = nan
    compared: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load(Event):
    """
    One call that read a checkpoint with a loader that may execute what the file says.

    call: "torch.load", "pickle.load". file: the name of the file.
    obstacle: what in the file no safe loader takes; "" where `weights_only=True` would do.
    """

    call: str
    file: str = ""
    obstacle: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation(Event):
    """
    What became of the checkpoints in a folder after one of them was written.

    quantity: "deleted" (an entry that is gone), "kept" (how many there are), "raised", "link" (one
        whose target is gone), "foreign" (a file of another's that is gone), "rank" (an entry that a
        process deleted which is not the first).
    at: when, in words. name: of the entry. newer: entries with a higher number that stayed, and
    older: with a lower one. alphabetical: whether the order of names explains what was deleted.
    keep: how many are to be kept; 0 where that is not known. detail: what else the report says.
    """

    quantity: str
    at: str = ""
    name: str = ""
    number: tuple[int, ...] = ()
    newer: int = 0
    older: int = 0
    alphabetical: bool = False
    touched: bool = False
    count: int = 0
    keep: int = 0
    detail: str = ""


CHECKPOINT_EVENTS = (Resumption, Part, Departure, Load, Rotation)
