"""The exit codes of the commands."""

CLEAN = 0
FOUND = 1  # something is broken, or worse than it may be
USAGE = 2  # the arguments are wrong, there was nothing to judge, or a file could not be written
FAILED = 3  # the code of the team failed
OURS = 4  # trainguard itself failed
INTERRUPTED = 130
