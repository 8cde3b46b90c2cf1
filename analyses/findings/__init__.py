"""The empirical comparison: each finding is a question put to the results of sweeps."""
