"""
Loss curves as snapshots: columns of a trace, the band they may move in, and their files.

`curve` takes a column of a trace: the values, the steps, and the conditions under which it was
made. `store` has the snapshot, a file beside the declaration; with syrupy, the plugin keeps it
there. `tolerance` compares: allowed are 30 times the drift that the snapshot holds up to that step,
and 1e-6. It says which step left the band first, and what the difference looks like; `picture`
draws it.
"""
