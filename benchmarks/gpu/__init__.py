"""
All that needs an accelerator, measured in one command: `nox -s gpu`.

It writes benchmarks/GPU.md, and the raw figures beside it. A part that fails is told, and the next
one goes on; what the time does not suffice for is left out, and told. `python -m
benchmarks.gpu --simulated FOLDER` runs everything at a small size on a simulated accelerator, so
that the command itself is known to run from end to end: its figures mean nothing.
"""
