"""The command line: `trainguard run`, `compare`, `memory`, `list` and `explain`."""
