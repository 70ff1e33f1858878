"""
What a recorder watches: a room for each kind of thing, a file for each thing, see `watcher`.

The judgements in `invariants/loop/` stand in rooms of the same names.
"""
