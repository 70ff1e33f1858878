"""What a recorder watches: one file for each thing, see `watcher`."""
