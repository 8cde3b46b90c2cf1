"""The recurrence from matrix products: inside a chunk of positions, and one step a chunk between.

A chunk is an affine map of the state it begins with: `S_end = M S + N` and `O = R S + Y`, with
M, N, R, Y made for all chunks at once; only the first map has to be done one chunk after the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from architectures.recurrence.decayed_products import (
    channel_products,
    decay_matrix,
    summing_dtype,
)
from architectures.recurrence.inputs import RecurrenceInputs
from architectures.recurrence.normaliser import plain_recurrence
from architectures.recurrence.stepwise import Output

CHUNK = 32
"""Positions a chunk: on a CPU the fastest of 16, 32 and 64 at the sizes of benchmarks/mixers.py."""

FORGOTTEN = -40.0
"""Log-decay of a step taken as complete: e^-40 is below float64's resolution. Stronger ones, -inf
among them, would take the digits of the weak ones that are summed up with them."""


def chunkwise(inputs: RecurrenceInputs, state: Tensor | None = None, chunk: int = CHUNK) -> Output:
    """The same numbers as `stepwise`, from products of `[chunk, chunk]` matrices.

    With c the decay summed up inside a chunk and `P(X, Y)_ij = x_i · y_j e^{c_i - c_j}` for j <= i
    (sum over key channels, each with its own decay), the additive rule has

        Y = P(Q, K) V,   R = Q e^c,   N = (K e^{c_C - c})ᵀ V,   M = diag(e^{c_C}).

    The delta rule writes V' = U - W S in place of V, with `(I + A) [U | W] = diag(β) [V | K e^c]`
    and `A = tril(diag(β) P(K, K), -1)`. The removal rule writes besides V, with keys -a ⊙ κ, what
    it reads there, V' = U + W S with `(I + B) [U | W] = [tril(P(κ, K), -1) V | κ e^c]` and
    `B = tril(P(κ, a ⊙ κ), -1)`, both at the decay of one position earlier.
    The systems are solved by substitution: keys repeat in composition prompts, and a Neumann
    series for the inverse then loses all digits.

    Returns:
        The outputs `o` in v's dtype, and the state after the last position.

    Raises:
        ValueError: shapes that do not fit together, or chunk below 1.
    """
    inputs.check(state)
    if chunk < 1:
        raise ValueError(f"chunk is {chunk}, but must be at least 1")
    S = inputs.initial_state() if state is None else state.to(inputs.state_dtype)
    plain, finish = plain_recurrence(inputs.map(lambda tensor: tensor.to(inputs.state_dtype)))
    length, size = plain.q.shape[1], _chunk_size(plain.q.shape[1], chunk)
    # Zero keys, zero β and zero log-decay leave a state as it is, so the tail may be padded.
    maps = _chunk_maps(plain.map(lambda tensor: _split(tensor, size)))

    S = S.flatten(0, 1)
    before = []
    for M, N in zip(maps.M.flatten(0, 1).unbind(1), maps.N.flatten(0, 1).unbind(1), strict=True):
        before.append(S)
        S = N + M * S if maps.M_is_diagonal else torch.baddbmm(N, M, S)
    starts = torch.stack(before, dim=1).unflatten(0, maps.N.shape[:2])
    out = (maps.Y + maps.R @ starts).flatten(2, 3)[:, :, :length].transpose(1, 2)
    out, S = finish(out, S.unflatten(0, maps.N.shape[:2]))
    return out.to(inputs.v.dtype), S


@dataclass(frozen=True)
class _ChunkMaps:
    """Of every chunk: `S_end = M S + N` and `O = R S + Y`, `[batch, head, chunk, ...]`."""

    M: Tensor  # [key, key], or its diagonal [key or 1, 1]
    N: Tensor  # [key, value]
    R: Tensor  # [position, key]
    Y: Tensor  # [position, value]
    M_is_diagonal: bool


def _chunk_maps(chunks: RecurrenceInputs) -> _ChunkMaps:
    """The affine maps of chunks given as `[batch, head, chunk, position, …]`."""
    scale = chunks.q.shape[-1] ** -0.5 if chunks.scale is None else chunks.scale
    q, k, v, beta = chunks.q * scale, chunks.k, chunks.v, chunks.beta
    decay = _Decay(chunks.log_decay)
    QK, Q_decayed, K_rest = decay.products(q, k), decay.since_start(q), decay.to_end(k)
    if beta is not None:
        A = decay.products(beta[..., None] * k, k)  # substitution reads below the diagonal only
        right = beta[..., None] * torch.cat([v, decay.since_start(k)], dim=-1)
        UW = torch.linalg.solve_triangular(A, right, upper=False, unitriangular=True)
        Y, QW = (QK @ UW).split([v.shape[-1], k.shape[-1]], dim=-1)
        N, KW = (K_rest.mT @ UW).split([v.shape[-1], k.shape[-1]], dim=-1)
        return _ChunkMaps(decay.whole_matrix(k) - KW, N, Q_decayed - QW, Y, False)
    Y, N = QK @ v, K_rest.mT @ v
    if chunks.removal_key is None or chunks.removal_rate is None:
        return _ChunkMaps(decay.whole(k), N, Q_decayed, Y, True)
    removal, write = chunks.removal_key, -chunks.removal_rate * chunks.removal_key
    B = -decay.products_with_earlier(removal, write)
    right = torch.cat(
        [decay.products_with_earlier(removal, k) @ v, decay.before_position(removal)], dim=-1
    )
    UW = torch.linalg.solve_triangular(B, right, upper=False, unitriangular=True)
    QU, QW = (decay.products(q, write) @ UW).split([v.shape[-1], k.shape[-1]], dim=-1)
    KU, KW = (decay.to_end(write).mT @ UW).split([v.shape[-1], k.shape[-1]], dim=-1)
    return _ChunkMaps(decay.whole_matrix(k) + KW, N + KU, Q_decayed + QW, Y + QU, False)


class _Decay:
    """What lies between the positions of a chunk: nothing, one decay a head, or one a channel."""

    def __init__(self, log_decay: Tensor | None) -> None:
        self.g, self.a_head = log_decay, False
        self._L: Tensor | None = None
        if log_decay is not None and log_decay.dim() == 4:  # [batch, head, chunk, position]
            self.g, self.a_head = log_decay[..., None], True
        if self.g is not None:
            # Sums of strong decays would take the digits of the weak ones between them.
            self.g = self.g.clamp(min=FORGOTTEN).to(summing_dtype(self.g))
        self.c = None if self.g is None else self.g.cumsum(-2)

    def products(self, x: Tensor, y: Tensor) -> Tensor:
        """P(X, Y)."""
        if self.c is None:
            return (x @ y.mT).tril()
        if self.a_head:
            return (x @ y.mT) * self._matrix(x.dtype)
        return channel_products(x, y, self.c, self.c)

    def products_with_earlier(self, x: Tensor, y: Tensor) -> Tensor:
        """tril(P(X, Y), -1) with rows decayed as the position before them."""
        if self.c is None or self.g is None:
            return (x @ y.mT).tril(-1)
        before = self.c - self.g
        if self.a_head:
            return (x @ y.mT) * decay_matrix(before[..., 0], self.c[..., 0], x.dtype, diagonal=-1)
        return channel_products(x, y, before, self.c, diagonal=-1)

    def since_start(self, x: Tensor) -> Tensor:
        """X e^c."""
        return x if self.c is None else x * self.c.to(x.dtype).exp()

    def before_position(self, x: Tensor) -> Tensor:
        """X e^c with the c of the position before."""
        return x if self.c is None or self.g is None else x * (self.c - self.g).to(x.dtype).exp()

    def to_end(self, x: Tensor) -> Tensor:
        """X e^{c_C - c}."""
        return x if self.c is None else x * (self.c[..., -1:, :] - self.c).to(x.dtype).exp()

    def whole(self, k: Tensor) -> Tensor:
        """e^{c_C} as a column `[key or 1, 1]`."""
        if self.c is None:
            return k.new_ones(*k.shape[:-2], 1, 1)
        return self.c[..., -1:, :].mT.to(k.dtype).exp()

    def whole_matrix(self, k: Tensor) -> Tensor:
        """diag(e^{c_C})."""
        return self.whole(k) * torch.eye(k.shape[-1], dtype=k.dtype, device=k.device)

    def _matrix(self, dtype: torch.dtype) -> Tensor:
        assert self.c is not None
        if self._L is None:
            self._L = decay_matrix(self.c[..., 0], self.c[..., 0], dtype)
        return self._L


def _chunk_size(length: int, chunk: int) -> int:
    """Chunks of about equal length, `chunk` at most, and of a length that can be halved."""
    chunks = -(-length // chunk)
    size = -(-length // chunks)
    return size if size <= 8 else min(chunk, 8 * -(-size // 8))


def _split(x: Tensor, size: int) -> Tensor:
    """`[batch, position, head, …]` to `[batch, head, chunk, position, …]`, padded with zeros."""
    x = x.transpose(1, 2).contiguous()  # read by several products, each of which would copy it
    missing = -x.shape[2] % size
    if missing:
        x = F.pad(x, (0, 0) * (x.dim() - 3) + (0, missing))
    return x.unflatten(2, (-1, size))
