"""What is what in the batches of a split: inputs, labels, mask, and the axes of batch and time."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from trainguard.core.errors import SubjectError, did_you_mean
from trainguard.observe.loader.ends import Ends
from trainguard.observe.loader.fields import array, name_fields, rows, tensor
from trainguard.observe.loader.fingerprints import one_print, row_prints
from trainguard.observe.loader.splits import is_train
from trainguard.subjects.domain import BATCH, Domain
from trainguard.subjects.loader import Loader

SEQUENCE = "T"
# Names that are the same in every code base; anything else must be declared.
LABELS = ("label", "labels", "target", "targets", "y", "class", "cls")
MASKS = ("attention_mask", "padding_mask", "key_padding_mask", "src_key_padding_mask")
INDICES = ("index", "idx", "indices", "id", "ids", "sample_id", "uid")
FILES = ("path", "paths", "file", "files", "filename", "filenames", "__key__", "__url__")
OTHERS = (*INDICES, *FILES, "__local_path__")


@dataclass
class Layout:
    """
    The roles of the fields of one split, found on its first batch.

    roles: {field: "input", "label", "mask", "reset" or "other"}.
    domains: the declared domains by the paths at which they were found.
    single: whether each item is one sample rather than a batch.
    ends: {field: where its rows end}, of what was read so far; None where all of a row counts, as
        where what was read by one layout is held against what was read by another.
    """

    split: str
    roles: dict[str, str] = field(default_factory=dict)
    domains: dict[str, Domain] = field(default_factory=dict)
    single: bool = False
    ends: dict[str, Ends] | None = None

    @property
    def has_sequence(self) -> bool:
        """Whether a mask, or a declared sequence, says where padding may be."""
        declared = any(SEQUENCE in (domain.shape or ()) for domain in self.domains.values())
        return declared or bool(self.of("mask"))

    def of(self, role: str) -> list[str]:
        """Return the fields of one role."""
        return [name for name, own in self.roles.items() if own == role]

    def align(self, name: str, value: Any) -> Any:
        """Return a field with its samples along the first axis."""
        domain, number = self.domains.get(name), tensor(value)
        if domain is None:
            return value if number is None else number
        if number is None:
            self._check_words(name, value)
        if number is None or BATCH not in (domain.shape or ()):
            return value if number is None else number
        if number.ndim != len(domain.shape or ()):
            raise SubjectError(
                f"the field {name!r} of {self.split!r} has the shape {tuple(number.shape)}, and"
                f" {' '.join(domain.shape or ())!r} is declared",
                "declare a name or a size for each of its dimensions",
            )
        axis = (domain.shape or ()).index(BATCH)
        return number.movedim(axis, 0) if axis else number

    def _check_words(self, name: str, value: Any) -> None:
        """Raise where a field of which numbers are declared holds words."""
        words = [entry for entry in value if isinstance(entry, str)] if _is_list(value) else []
        if words:
            raise SubjectError(
                f"the field {name!r} of {self.split!r} holds words such as {words[0]!r}, and"
                " numbers are declared",
                "turn them into numbers in the dataset or the collate function, or leave the field"
                " out of fields=",
            )

    def sequence(self, name: str, value: torch.Tensor) -> int | None:
        """Return the sequence axis of an aligned field: the declared one, else the second."""
        domain = self.domains.get(name)
        if domain is None or BATCH not in (domain.shape or ()):
            return 1 if value.ndim > 1 else None
        words = [word for word in domain.shape or () if word != BATCH]
        return words.index(SEQUENCE) + 1 if SEQUENCE in words else None

    def end(self, name: str) -> Ends | None:
        """Return where the rows of a field end; its sequence may be declared."""
        if self.ends is None:
            return None
        if name not in self.ends:
            domain = self.domains.get(name)
            words = [word for word in (domain and domain.shape) or () if word != BATCH]
            self.ends[name] = Ends(words.index(SEQUENCE) + 1 if SEQUENCE in words else None)
        return self.ends[name]


@dataclass
class ReadBatch:
    """One batch, read: its fields with the samples along the first axis, and how many they are."""

    fields: dict[str, Any]
    size: int
    layout: Layout
    arrays: dict[str, Any] = field(default_factory=dict)

    def array(self, name: str) -> Any:
        """Return a field as an array of the same memory, made once; None where NumPy has none."""
        if name not in self.arrays:
            self.arrays[name] = array(self.fields.get(name))
        return self.arrays[name]

    @property
    def prints(self) -> tuple[int, ...]:
        """The fingerprints of the inputs of each sample."""
        return self._of("input")

    @property
    def labels(self) -> tuple[int, ...]:
        """The fingerprints of the labels of each sample; empty where none are known."""
        return self._of("label")

    @property
    def shapes(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """The shapes of the fields that are tensors or arrays."""
        return tuple(
            (name, tuple(int(n) for n in value.shape))
            for name, value in self.fields.items()
            if isinstance(value, torch.Tensor | np.ndarray)
        )

    @property
    def length(self) -> int:
        """The size along the sequence axis of the declared field, else of the first input."""
        declared = [n for n, d in self.layout.domains.items() if SEQUENCE in (d.shape or ())]
        for name in [n for n in declared if n in self.fields] or self.layout.of("input"):
            value = self.fields.get(name)
            if isinstance(value, torch.Tensor):
                axis = self.layout.sequence(name, value)
                if axis is not None and axis < value.ndim:
                    return int(value.shape[axis])
        return 0

    def _of(self, role: str) -> tuple[int, ...]:
        """Return the fingerprints of each sample over the fields of one role."""
        names = [name for name in self.layout.of(role) if name in self.fields]
        values = [self.fields[n] if (a := self.array(n)) is None else a for n in names]
        if self.layout.single:
            return (hash(tuple(one_print(value) for value in values)),) if values else ()
        return row_prints(values, self.size, [self.layout.end(name) for name in names])


def read(batch: Any, layout: Layout, index: int) -> ReadBatch:
    """Read one batch as its split's first batch was understood."""
    raw = batch if _is_flat(batch) else name_fields(batch)
    if not raw:
        raise SubjectError(
            f"the loader of {layout.split!r} served {_what(batch)} as its batch {index}",
            "look for a collate function that forgets to return, or a dataset that holds nothing",
        )
    _check_none(raw, layout.split, index)
    fields = {name: layout.align(name, value) for name, value in raw.items()}
    return ReadBatch(fields, 1 if layout.single else _size(fields, layout), layout)


def _is_flat(batch: Any) -> bool:
    """Say whether a batch is the usual dict of tensors, which needs no search for its fields."""
    return type(batch) is dict and all(
        type(name) is str and type(value) is torch.Tensor for name, value in batch.items()
    )


def laid_out(subject: Loader, split: str, batch: Any) -> Layout:
    """Find out what is what in the first batch of a split."""
    raw = name_fields(batch)
    layout = Layout(split)
    for name, domain in subject.fields.items():
        path = _path(subject, str(name), raw, split)
        if path:
            layout.domains[path] = domain
    declared = {
        "label": subject.labels,
        "mask": (subject.mask,) if subject.mask else (),
        "reset": (subject.reset,) if subject.reset else (),
        "input": subject.inputs,
    }
    given = {}
    for role, names in declared.items():
        given.update({_path(subject, str(name), raw, split): role for name in names})
    masks = {path for path, domain in layout.domains.items() if domain.kind == "mask"}
    found = _find_roles(raw, bool(subject.labels), bool(subject.inputs))
    layout.roles = {
        path: given.get(path) or ("mask" if path in masks else found[path]) for path in raw
    }
    if "input" not in layout.roles.values():
        others = [path for path, role in layout.roles.items() if role == "other"]
        layout.roles.update(dict.fromkeys(others, "input"))
    layout.single = _is_single(raw, layout)
    return layout


def _find_roles(raw: Mapping[str, Any], labelled: bool, inputs: bool) -> dict[str, str]:
    """Say by name, and for a pair by place, what each field of a batch is."""
    roles = {}
    for path in raw:
        word = path.rpartition(".")[2].lower()
        role = "other" if inputs or word in OTHERS else "input"
        role = "label" if word in LABELS and not labelled else role
        roles[path] = "mask" if word in MASKS else role
    if list(raw) == ["0", "1"] and not labelled and not inputs and _is_classes(raw["1"]):
        roles["1"] = "label"
    return roles


def _is_classes(value: Any) -> bool:
    """Say whether a field holds one class for each sample: a whole number or a word."""
    number = tensor(value)
    if number is None:
        return isinstance(value, list | tuple) and all(isinstance(v, str) for v in value)
    return number.ndim == 1 and not number.is_floating_point()


def _path(subject: Loader, name: str, raw: Mapping[str, Any], split: str) -> str:
    """Return the path of a declared field in a batch; a split for evaluation may lack it."""
    if name in raw:
        return name
    ending = [path for path in raw if path.rpartition(".")[2] == name]
    if len(ending) == 1:
        return ending[0]
    if is_train(split) or len(subject.options) < 2:
        raise SubjectError(
            f"the batches of {split!r} have no field {name!r}",
            f"name one of the fields that they have.{did_you_mean(name, raw)}".replace("..", "."),
        )
    return ""


def _is_single(raw: Mapping[str, Any], layout: Layout) -> bool:
    """Say whether an item is one sample: no declared field has a batch axis, or labels no axis."""
    if layout.domains:
        return not any(BATCH in (domain.shape or ()) for domain in layout.domains.values())
    known = [raw[name] for name in layout.of("label")] or [raw[n] for n in layout.of("input")]
    return all(_is_scalar(value) for value in known)


def _is_list(value: Any) -> bool:
    """Say whether a field is a list with an entry for each sample."""
    return isinstance(value, list | tuple)


def _is_scalar(value: Any) -> bool:
    """Say whether a value is one number or one word."""
    number = tensor(value)
    return isinstance(value, str) if number is None else number.ndim == 0


def _size(fields: Mapping[str, Any], layout: Layout) -> int:
    """Return the number of samples: of the declared fields, else what most fields agree on."""
    known = [name for name, domain in layout.domains.items() if BATCH in (domain.shape or ())]
    names = [n for n in known if n in fields] or [*layout.of("input"), *layout.of("label")]
    sizes = [size for name in names if name in fields and (size := rows(fields[name]))]
    if len(set(sizes)) < 2:
        return sizes[0] if sizes else 0
    return Counter(sizes).most_common(1)[0][0]


def _check_none(raw: Mapping[str, Any], split: str, index: int) -> None:
    """Raise where a sample of a field is None."""
    for name, value in raw.items():
        if isinstance(value, list | tuple) and any(entry is None for entry in value):
            row = next(i for i, entry in enumerate(value) if entry is None)
            raise SubjectError(
                f"the field {name!r} of {split!r} holds None in place of sample {row} of batch"
                f" {index}",
                "leave out in the collate function what could not be loaded",
            )


def _what(batch: Any) -> str:
    """Write what was served in place of a batch."""
    return "None" if batch is None else f"an empty {type(batch).__name__}"
