"""
How a declared loss is observed: swept over the declared ranges in batched calls.

`observer` draws the structure (shapes, arguments, seed) with Hypothesis. `batching` finds out how
many points one call can evaluate, `evaluate` does so, and `search` sweeps thousands of points of
the declared ranges and closes in on the worst of each quantity that a probe of `probes`, `slope`
or `zero_gradient` measures. `side_effects` looks at what a call does besides returning a number.
The counterexample of a finding is made smaller by `minimize` and rounder by `shrink` for as long as
the same judge still objects.
"""
