"""What a layer knows (linear probes) and what it causes (interchange interventions)."""

from probes.activations import residual_stream
from probes.interchange import Interchange, InterchangePairs, interchange, interchange_pairs
from probes.linear import LinearProbe, fit_ridge
from probes.progress import HopProbes, probe_hops

__all__ = [
    "HopProbes",
    "Interchange",
    "InterchangePairs",
    "LinearProbe",
    "fit_ridge",
    "interchange",
    "interchange_pairs",
    "probe_hops",
    "residual_stream",
]
