"""Decay that the input decides, as in Mamba: `g = -e^{A_log} · softplus(a + b_dt)`, in float32."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from architectures.recurrence import float32_at_least

SHORTEST_STEP, LONGEST_STEP = 1e-3, 1e-1
"""Range of the initial time steps, as in Mamba-2 (arXiv 2405.21060)."""

FASTEST_RATE = 16.0
"""Initial decay rates e^{A_log} lie between 1 and this, as in Mamba-2."""


def time_step(a: Tensor, b_dt: Tensor) -> Tensor:
    """`softplus(a + b_dt)` in float32 at least: a decay in bfloat16 loses what it is made for."""
    a = float32_at_least(a)
    return F.softplus(a + b_dt.to(a.dtype))


def log_decay(step: Tensor, A_log: Tensor) -> Tensor:
    """`-e^{A_log} · step`, at most 0; A_log as broad as the step's last axes ask for."""
    return -A_log.to(step.dtype).exp() * step


def initial_rates(heads: int) -> Tensor:
    """A_log of rates spread evenly from 1 to `FASTEST_RATE` over the heads."""
    return torch.linspace(1.0, FASTEST_RATE, heads).log()


def initial_steps(*shape: int) -> Tensor:
    """b_dt of steps spread evenly in logarithm over the shape's last axis; softplus undone."""
    ends = torch.tensor([SHORTEST_STEP, LONGEST_STEP]).log()
    step = torch.linspace(float(ends[0]), float(ends[1]), shape[-1]).exp()
    return (step + torch.log(-torch.expm1(-step))).expand(shape).clone()
