"""What a team declares: `tg.Loss`, `tg.Model`, ... A subject is data; nothing of it runs here."""
