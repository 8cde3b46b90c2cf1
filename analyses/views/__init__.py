"""Look rather than read: attention, effects, hop maps and circuits, in notebooks and on pages."""

from analyses.views.attention import attention_matrix, attention_view
from analyses.views.effects import effect_view, residual_effects
from analyses.views.pictures import circuit_figure, hop_map_figure
from analyses.views.viewers import View, beside

__all__ = [
    "View",
    "attention_matrix",
    "attention_view",
    "beside",
    "circuit_figure",
    "effect_view",
    "hop_map_figure",
    "residual_effects",
]
