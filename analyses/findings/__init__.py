"""The empirical comparison: each finding is a question put to the results of sweeps."""

from analyses.findings.capacity import CAPACITY
from analyses.findings.depth import DEPTH
from analyses.findings.finding import Finding, Told
from analyses.findings.one_hop_a_layer import ONE_HOP_A_LAYER
from analyses.findings.placement import PLACEMENT
from analyses.findings.ratio import RATIO
from analyses.findings.recurrences import RECURRENCES
from analyses.findings.separation import SEPARATION
from analyses.findings.shortcuts import BRANCHING, FETCHING, FORWARD, NO_QUERY

FINDINGS = (
    ONE_HOP_A_LAYER,
    DEPTH,
    SEPARATION,
    PLACEMENT,
    CAPACITY,
    RECURRENCES,
    BRANCHING,
    FETCHING,
    NO_QUERY,
    FORWARD,
    RATIO,
)
"""In the order of docs/findings.md."""

__all__ = ["FINDINGS", "Finding", "Told"]
