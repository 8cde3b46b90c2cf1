"""What a layer knows (linear probes, lenses) and what it causes (patching, interchange)."""

from probes.activations import activation_reader, residual_stream
from probes.attribution import agreement, attribution
from probes.back_patching import back_patch
from probes.circuit import Circuit, circuit
from probes.folding import folded
from probes.gating import gate, gated_attention
from probes.hop_map import HopMap, hop_map
from probes.interchange import (
    Interchange,
    InterchangePairs,
    interchange,
    interchange_at,
    interchange_pairs,
)
from probes.lens import fit_tuned_lens, lens_accuracy, logit_lens
from probes.linear import LinearProbe, fit_ridge
from probes.mechanisms import carry_or_look_up, entry_contents, first_hop, interchange_controls
from probes.metrics import correctness, log_probability, logit_difference
from probes.patching import PatchSweep, SweepInterrupted, ablation_sweep, patch_sweep
from probes.paths import path_sweep
from probes.probing import PromptSplit, Target, probe_sites
from probes.progress import HopProbes, probe_hops
from probes.sites import Site, grid, read
from probes.subspace import align, subspace_interchange

__all__ = [
    "Circuit",
    "HopMap",
    "HopProbes",
    "Interchange",
    "InterchangePairs",
    "LinearProbe",
    "PatchSweep",
    "PromptSplit",
    "Site",
    "SweepInterrupted",
    "Target",
    "ablation_sweep",
    "activation_reader",
    "agreement",
    "align",
    "attribution",
    "back_patch",
    "carry_or_look_up",
    "circuit",
    "correctness",
    "entry_contents",
    "first_hop",
    "fit_ridge",
    "fit_tuned_lens",
    "folded",
    "gate",
    "gated_attention",
    "grid",
    "hop_map",
    "interchange",
    "interchange_at",
    "interchange_controls",
    "interchange_pairs",
    "lens_accuracy",
    "log_probability",
    "logit_difference",
    "logit_lens",
    "patch_sweep",
    "path_sweep",
    "probe_hops",
    "probe_sites",
    "read",
    "residual_stream",
    "subspace_interchange",
]
