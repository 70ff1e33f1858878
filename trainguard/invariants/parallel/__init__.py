"""Judgements of a step that several processes make together, held against that of one process."""

from trainguard.invariants.parallel import equivalence as equivalence
