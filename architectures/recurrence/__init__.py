"""The one recurrence that every linear mixer is: a specification, and a fast form that equals it.

S_t = e^{g_t} S_{t-1} + (delta rule or removal) + k_t v_tᵀ,  o_t = S_tᵀ q_t
"""

from architectures.recurrence.chunkwise import chunkwise
from architectures.recurrence.inputs import RecurrenceInputs, float32_at_least
from architectures.recurrence.stepwise import stepwise

__all__ = ["RecurrenceInputs", "chunkwise", "float32_at_least", "stepwise"]
