"""Plain records of what was seen. Only the standard library is imported here."""
