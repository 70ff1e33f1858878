"""The pytest plugin: subjects become collectors, invariants become items."""
