"""Observe a subject, judge what was seen, drop what is excused: the way in without pytest."""
