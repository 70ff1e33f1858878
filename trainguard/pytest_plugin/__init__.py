"""
The pytest plugin: subjects become collectors, invariants become items.

`plugin` has the options, and imports nothing of weight until --trainguard is given; `session` has
the hooks of a judging run. `collect` finds the subjects of a module and makes one item for each
invariant that applies, device and dtype. The first item of a subject observes it; the others share
what was seen. `fixtures` has `guard`, `curve_snapshots` and `syrupy_store` keep curves, `xdist`
lets the items of one subject stay on one worker.
"""
