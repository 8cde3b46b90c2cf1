"""The one recurrence that every linear mixer is.

    S_t = e^{g_t} S_{t-1},   then   S_t += k_t v_tᵀ                    (additive)
                             or     S_t += k_t β_t (v_t - S_tᵀ k_t)ᵀ   (delta rule, β given)
    o_t = scale · S_tᵀ q_t

`stepwise` is the specification, one token after the other. `chunkwise` computes the same
from matrix products inside chunks and one step per chunk between them; it is what trains.
Shapes: q, k `[batch, position, head, key]`, v `[batch, position, head, value]`, beta and
log_decay `[batch, position, head]`, state `[batch, head, key, value]` in float32 or wider.
The equations are those of DeltaNet (arXiv 2406.06484) and Gated DeltaNet (arXiv 2412.06464).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class RecurrenceInputs:
    """What a mixer makes of the residual stream, and all that the recurrence reads.

    Attributes:
        q, k: `[batch, position, head, key]`.
        v: `[batch, position, head, value]`.
        beta: `[batch, position, head]` writing strength of the delta rule; None for the
            additive update.
        log_decay: `[batch, position, head]`, at most 0; None for no decay.
        scale: factor on the output; `key^-1/2` if None.
    """

    q: Float[Tensor, "batch position head key"]
    k: Float[Tensor, "batch position head key"]
    v: Float[Tensor, "batch position head value"]
    beta: Float[Tensor, "batch position head"] | None = None
    log_decay: Float[Tensor, "batch position head"] | None = None
    scale: float | None = None

    def check(self, state: Tensor | None) -> None:
        """Raise a ValueError unless all shapes agree with q's, k's and v's."""
        batch, position, head, key = self.q.shape
        expected: dict[str, tuple[Tensor | None, tuple[int, ...]]] = {
            "k": (self.k, (batch, position, head, key)),
            "v": (self.v, (batch, position, head, self.v.shape[-1])),
            "beta": (self.beta, (batch, position, head)),
            "log_decay": (self.log_decay, (batch, position, head)),
            "state": (state, (batch, head, key, self.v.shape[-1])),
        }
        for name, (tensor, shape) in expected.items():
            if tensor is not None and tuple(tensor.shape) != shape:
                raise ValueError(
                    f"{name} has shape {tuple(tensor.shape)}, but q of shape "
                    f"{tuple(self.q.shape)} and v of shape {tuple(self.v.shape)} ask for {shape}"
                )


Output = tuple[Float[Tensor, "batch position head value"], Float[Tensor, "batch head key value"]]


def stepwise(inputs: RecurrenceInputs, state: Tensor | None = None) -> Output:
    """The recurrence as written, position by position.

    Returns:
        The outputs `o` in v's dtype, and the state after the last position.

    Raises:
        ValueError: shapes that do not fit together.
    """
    inputs.check(state)
    q, k, v, beta, log_decay, S = _prepare(inputs, state)  # [batch, head, position, ...]
    outputs = []
    for t in range(q.shape[2]):
        k_t, v_t = k[:, :, t], v[:, :, t]
        if log_decay is not None:
            S = S * log_decay[:, :, t, None, None].exp()
        if beta is not None:
            remembered = torch.einsum("bhkv,bhk->bhv", S, k_t)
            v_t = beta[:, :, t, None] * (v_t - remembered)
        S = S + k_t[..., :, None] * v_t[..., None, :]
        outputs.append(torch.einsum("bhkv,bhk->bhv", S, q[:, :, t]))
    out = torch.stack(outputs, dim=2).transpose(1, 2)
    return out.to(inputs.v.dtype), S


def chunkwise(inputs: RecurrenceInputs, state: Tensor | None = None, chunk: int = 64) -> Output:
    """The same numbers as `stepwise`, from products of `[chunk, chunk]` matrices.

    With c the decay summed up inside a chunk and `L_ij = e^{c_i - c_j}` for j <= i, the outputs
    are `(QKᵀ ⊙ L) V' + (Q e^c) S`. The additive rule has V' = V. The delta rule has V' = U - W S
    with `(I + A) [U | W] = diag(β) [V | K e^c]` and `A = tril(diag(β)(KKᵀ ⊙ L), -1)`. The system
    is solved by substitution: keys repeat in composition prompts, and a Neumann series for
    (I + A)^-1 then loses all digits.

    Returns:
        The outputs `o` in v's dtype, and the state after the last position.

    Raises:
        ValueError: shapes that do not fit together, or chunk below 1.
    """
    inputs.check(state)
    if chunk < 1:
        raise ValueError(f"chunk is {chunk}, but must be at least 1")
    length = inputs.q.shape[1]
    chunk = min(chunk, length)
    q, k, v, beta, log_decay, S = _prepare(inputs, state)
    # Zero keys, zero β and zero log-decay leave a state as it is, so the tail may be padded.
    q, k, v = (_split(x, chunk) for x in (q, k, v))  # [batch, head, chunks, chunk, ...]
    beta, log_decay = (None if x is None else _split(x, chunk) for x in (beta, log_decay))

    earlier = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).tril()
    QK = q @ k.mT
    KK = k @ k.mT if beta is not None else None
    Q_decayed, K_rest, K_decayed, whole = q, k, k, None
    if log_decay is None:
        QK = QK.masked_fill(~earlier, 0.0)
    else:
        c = log_decay.cumsum(-1)
        # Masked before exp: the upper half can overflow, and inf · 0 has gradient NaN.
        L = (c[..., :, None] - c[..., None, :]).masked_fill(~earlier, -math.inf).exp()
        QK = QK * L
        KK = None if KK is None else KK * L
        Q_decayed, K_decayed = q * c.exp()[..., None], k * c.exp()[..., None]
        K_rest = k * (c[..., -1:] - c).exp()[..., None]
        whole = c[..., -1].exp()
    W = None
    if beta is not None and KK is not None:
        A = (beta[..., None] * KK).tril(-1)
        right = beta[..., None] * torch.cat([v, K_decayed], dim=-1)
        solved = torch.linalg.solve_triangular(A, right, upper=False, unitriangular=True)
        v, W = solved.split([v.shape[-1], k.shape[-1]], dim=-1)

    outputs = []
    for i in range(q.shape[2]):
        V = v[:, :, i] if W is None else v[:, :, i] - W[:, :, i] @ S
        outputs.append(QK[:, :, i] @ V + Q_decayed[:, :, i] @ S)
        S = S if whole is None else S * whole[:, :, i, None, None]
        S = S + K_rest[:, :, i].mT @ V
    out = torch.cat(outputs, dim=2)[:, :, :length].transpose(1, 2)
    return out.to(inputs.v.dtype), S


def _prepare(
    inputs: RecurrenceInputs, state: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor]:
    """Heads before positions, float32 at least, q scaled, and a state to begin with."""
    dtype = torch.promote_types(inputs.v.dtype, torch.float32)
    scale = inputs.q.shape[-1] ** -0.5 if inputs.scale is None else inputs.scale
    q, k, v = (x.to(dtype).transpose(1, 2) for x in (inputs.q, inputs.k, inputs.v))
    beta, log_decay = (
        None if x is None else x.to(dtype).transpose(1, 2) for x in (inputs.beta, inputs.log_decay)
    )
    if state is None:
        state = q.new_zeros(*q.shape[:2], q.shape[-1], v.shape[-1])
    return q * scale, k, v, beta, log_decay, state.to(dtype)


def _split(x: Tensor, chunk: int) -> Tensor:
    """`[batch, head, position, …]` to `[batch, head, chunks, chunk, …]`, padded with zeros."""
    missing = -x.shape[2] % chunk
    if missing:
        x = F.pad(x, (0, 0) * (x.dim() - 3) + (0, missing))
    return x.unflatten(2, (-1, chunk))
