"""How a declared schedule is observed: driven step by step on a real optimizer."""
