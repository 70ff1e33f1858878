"""
How a run of several processes is observed: each records its own, and their digests are joined.

`processes` makes them: of a function as forked children that find each other as torchrun's do, of a
script by torch.distributed.run. `observer` returns what the family `ranks` judges. Under
`trainguard run` the launcher makes them, and the command brings together what they tell.
"""
