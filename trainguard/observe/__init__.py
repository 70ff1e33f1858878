"""Observers run the team's code and hand back traces of numbers. Only this folder imports torch."""
