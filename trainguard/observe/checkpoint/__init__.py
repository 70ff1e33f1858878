"""
How checkpoints are tried out: real runs in processes of their own, and what is seen of them.

`runs` makes them: one without an interruption, one that is killed after a save, one that goes on
from what it left, one that is killed in the middle of a save (`process` starts and ends them). A
`CheckpointRecorder` (`recorder`) records each and takes down checksums of parameters, buffers,
optimizers, schedulers and generators (`state`). `comparison` finds the first part that was not
restored, and the first step that differs. `files` and `rotation` see which files come and go, and
what is read unsafely.
"""
