"""What a team calls from Python: `tg.check` and `tg.record`, which raise with the whole report."""
