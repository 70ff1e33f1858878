"""How a training that knows nothing of it is recorded: hooks, windows, watchers."""
