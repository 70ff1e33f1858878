"""
How a declared schedule is observed: driven step by step on a real optimizer.

`drive` builds it, reads its rates and advances it as a training loop would; `probes` stop and
resume it, leave schedulers out, and feed plateau rules metrics of all kinds; `observer` draws the
settings with Hypothesis and looks for the smallest that still fails.
"""
