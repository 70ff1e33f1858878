"""
All that needs an accelerator, measured in one command: `nox -s gpu`.

It writes benchmarks/GPU.md, and the raw figures beside it. A part that fails is told, and the next
one goes on; what the time does not suffice for is left out, and told. Names of parts after `--`
choose some, where a machine is lent for a few minutes at a time: the others stay on the page.
`nox -s gpu -- --simulated --into FOLDER` makes everything at a small size on a simulated
accelerator, so that the command itself is known to run from end to end: its figures mean nothing.
Where there is no network, an environment that has all of `trainguard[test]` is used as it is:
`nox -R --no-venv -s gpu`.
"""
