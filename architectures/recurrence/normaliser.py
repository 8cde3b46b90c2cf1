"""Normalised and exponentially gated recurrences, as plain ones.

A value that is always 1 collects the sum of the weights, so a normaliser needs no state of its
own. Weights e^i are kept in range by mLSTM's stabiliser `m_t = max(log f_t + m_{t-1}, i_t)`
(arXiv 2405.04517, eq. 15): it cancels exactly, so it begins at 0 in every call, takes no part in
the gradient, and states go in and come out unstabilised.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from architectures.recurrence.inputs import RecurrenceInputs

SMALLEST_SUM = 1e-6
"""Added to a sum of weights before dividing by it: features of elu + 1 can underflow to 0."""

Finish = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def plain_recurrence(inputs: RecurrenceInputs) -> tuple[RecurrenceInputs, Finish]:
    """Inputs without `normaliser` and `log_input`, and what makes their results those asked for.

    Returns:
        The plain inputs, and a function from their output and final state to the output and
        state of `inputs`.
    """
    m: Tensor | None = None
    plain = replace(inputs, normaliser="none", log_input=None)
    if inputs.log_input is not None:
        plain, m = _stabilised(plain, inputs.log_input)
    if inputs.normaliser != "none":
        ones = torch.ones_like(plain.v[..., :1])
        plain = replace(plain, v=torch.cat([plain.v, ones], dim=-1))

    def finish(out: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        unit = None if m is None else (-m).exp()[..., None]  # what weight 1 is in the plain units
        if unit is not None:
            state = state / unit[:, -1, :, :, None]
        if inputs.normaliser == "none":
            return out if unit is None else out / unit, state
        out, weights = out[..., :-1], out[..., -1:]
        if inputs.normaliser == "sum":
            return out / (weights + SMALLEST_SUM), state
        floor = torch.ones_like(weights) if unit is None else unit
        # Past m = 80 the floor itself leaves float32's range.
        return out / torch.maximum(weights.abs(), floor.clamp(min=1e-35)), state

    return plain, finish


def _stabilised(inputs: RecurrenceInputs, log_input: Tensor) -> tuple[RecurrenceInputs, Tensor]:
    """Keys times e^{i - m} and decay in the units of m `[batch, position, head]`."""
    dtype = inputs.state_dtype
    i = log_input.to(dtype)
    log_decay = torch.zeros_like(i) if inputs.log_decay is None else inputs.log_decay.to(dtype)
    with torch.no_grad():
        c = log_decay.cumsum(1)
        m = c + (i - c).cummax(1).values.clamp(min=0.0)
        m_before = torch.cat([torch.zeros_like(m[:, :1]), m[:, :-1]], dim=1)
    keys = inputs.k.to(dtype) * (i - m).exp()[..., None]
    return replace(inputs, k=keys, log_decay=log_decay + m_before - m), m
