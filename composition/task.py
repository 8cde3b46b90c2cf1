"""The task: L-sequential function composition (arXiv 2602.01763, Definition 2.5).

A prompt spells out functions `z_L … z_1`, a start `z_0` and a query `w`; the answer is
`i_L` of the chain `i_0 = z_0`, `i_1 = z_1(i_0)`, `i_{l+1} = z_{l+1}(w_l, i_l)`.
This file knows where everything stands in a prompt and what it is called. It does not
import torch, so the theory can be asked without loading it; drawing prompts is
`composition.sampling`.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

if TYPE_CHECKING:
    import torch
    from jaxtyping import Int

    from composition.sampling import CounterfactualPairs, Prompts

PositiveInteger = Annotated[int, Field(ge=1)]


class Entry(BaseModel):
    """What one prompt position holds: `role` is a function ("z2"), "start", "query" or "end".

    A function's entry also has its argument: the index `i` and, from `z_2` on, the query
    part `w_{l-1}` that selects it (`query_part` is None for `z_1`).
    """

    model_config = ConfigDict(frozen=True)

    role: str
    function: int | None = None
    argument: int | None = None
    query_part: int | None = None


class CompositionTask(BaseModel):
    """L-sequential function composition with `L = len(branching) + 1` hops.

    Args:
        start_domain: `m`, the number of values `z_0` can take.
        branching: `(n_1, …, n_{L-1})`; query part `w_l` takes `n_l` values.
        query: with False the prompt has no query token (ablation). There is then nothing
            to branch on, so every branching factor must be 1, and the answer is read at
            the start token, which is last.
        order: "backward" is the task: `z_L … z_1, z_0, w`. "forward" is an ablation that a
            recurrence can fold: `w, z_0, z_1 … z_L`, then one end token where the answer
            is read.
        constant_range: every function has values in `[m]` (a smaller relative of the task)
            where the definition lets `z_l` have values in its whole domain `[N_{l-1}]`.

    Raises:
        pydantic.ValidationError: fewer than two hops, a size below 1, or branching
            without a query.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    start_domain: PositiveInteger
    branching: tuple[PositiveInteger, ...] = Field(min_length=1)
    query: bool = True
    order: Literal["backward", "forward"] = "backward"
    constant_range: bool = False

    @model_validator(mode="after")
    def _without_query_nothing_branches(self) -> CompositionTask:
        if not self.query and any(n != 1 for n in self.branching):
            raise ValueError(
                f"query=False leaves nothing to branch on, but branching is {self.branching}; "
                f"use branching={(1,) * len(self.branching)} and put the size into start_domain"
            )
        return self

    # -- sizes ---------------------------------------------------------------------------

    @property
    def hops(self) -> int:
        """L, the number of functions in the chain."""
        return len(self.branching) + 1

    @cached_property
    def domains(self) -> tuple[int, ...]:
        """Number of arguments of `z_1 … z_L`: `(N_0, …, N_{L-1})`; index `l-1` is `z_l`'s."""
        domains = [self.start_domain]
        for n in self.branching:
            domains.append(n * (self.start_domain if self.constant_range else domains[-1]))
        return tuple(domains)

    @cached_property
    def ranges(self) -> tuple[int, ...]:
        """Number of values that `i_0 … i_L` can take; index `l` is `i_l`'s."""
        if self.constant_range:
            return (self.start_domain,) * (self.hops + 1)
        return (self.start_domain, *self.domains)

    def candidates(self, hop: int) -> int:
        """Entries of `z_hop` left in question by the query: one for each value of `i_{hop-1}`."""
        return self.ranges[hop - 1]

    @property
    def n_values(self) -> int:
        """Number of values a function entry, the start or the answer can take."""
        return max(self.ranges)

    @property
    def n_queries(self) -> int:
        """Number of values the one query token can take, `n_1 ··· n_{L-1}`."""
        return math.prod(self.branching)

    @property
    def vocabulary(self) -> int:
        """Number of tokens: the values `0 … n_values-1`, then the queries, then the end token."""
        return self.n_values + self.n_queries * self.query + (self.order == "forward")

    @cached_property
    def length(self) -> int:
        """Tokens in a prompt; `2 + sum_l N_{l-1}` for the task itself."""
        return len(self.entries)

    # -- where things stand ----------------------------------------------------------------

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """What each position of a prompt holds, in prompt order."""
        functions = [self._function_entries(hop) for hop in range(1, self.hops + 1)]
        start, query = [Entry(role="start")], [Entry(role="query")] * self.query
        if self.order == "forward":
            parts = [query, start, *functions, [Entry(role="end")]]
        else:
            parts = [*reversed(functions), start, query]
        return tuple(entry for part in parts for entry in part)

    def _function_entries(self, hop: int) -> list[Entry]:
        per_part = self.candidates(hop)
        return [
            Entry(
                role=f"z{hop}",
                function=hop,
                argument=index % per_part,
                query_part=index // per_part if hop > 1 else None,
            )
            for index in range(self.domains[hop - 1])
        ]

    @cached_property
    def positions(self) -> dict[str, slice]:
        """Slices of the prompt by name: "z1" … "zL", "start", "query" if there is one, "answer"."""
        slices: dict[str, slice] = {}
        for position, entry in enumerate(self.entries):
            begin = slices[entry.role].start if entry.role in slices else position
            slices[entry.role] = slice(begin, position + 1)
        slices["answer"] = slice(self.length - 1, self.length)
        return slices

    @property
    def roles(self) -> tuple[str, ...]:
        """What positions can be, in prompt order: "zL" … "z1", "start", "query" for the task."""
        return tuple(dict.fromkeys(entry.role for entry in self.entries))

    @property
    def start_position(self) -> int:
        """Where the start `z_0` stands."""
        return self.positions["start"].start

    @property
    def answer_position(self) -> int:
        """Where the answer is read: the last position."""
        return self.length - 1

    @property
    def traced_positions(self) -> dict[str, int]:
        """The positions at which progress is measured, by name: "start" and "answer"."""
        return {"start": self.start_position, "answer": self.answer_position}

    def query_parts(self, query: int) -> tuple[int, ...]:
        """`(w_1, …, w_{L-1})` of a query number in `0 … n_queries-1`; `w_1` varies slowest."""
        parts: list[int] = []
        for n in reversed(self.branching):
            query, part = divmod(query, n)
            parts.append(part)
        return tuple(reversed(parts))

    def token_label(self, position: int, token: int) -> str:
        """The token as a person would write it: "z2[w1=1,i=3] -> 4", "z0 = 2", "w1=1,w2=0", "=".

        Raises:
            ValueError: the position is outside the prompt, or the token cannot stand there.
        """
        if not 0 <= position < self.length:
            raise ValueError(f"position {position} is outside the prompt of {self.length} tokens")
        entry = self.entries[position]
        lowest, highest = self._tokens_at(entry)
        if not lowest <= token <= highest:
            raise ValueError(
                f"token {token} cannot stand at position {position} ({entry.role}): "
                f"there it is one of {lowest} … {highest}"
            )
        if entry.role == "end":
            return "="
        if entry.role == "query":
            parts = self.query_parts(token - self.n_values)
            return ",".join(f"w{hop}={part}" for hop, part in enumerate(parts, start=1))
        if entry.role == "start":
            return f"z0 = {token}"
        if entry.query_part is None:
            return f"{entry.role}[i={entry.argument}] -> {token}"
        assert entry.function is not None
        part = f"w{entry.function - 1}={entry.query_part}"
        return f"{entry.role}[{part},i={entry.argument}] -> {token}"

    def _tokens_at(self, entry: Entry) -> tuple[int, int]:
        """Lowest and highest token that an entry of this kind can hold."""
        if entry.role == "query":
            return self.n_values, self.n_values + self.n_queries - 1
        if entry.role == "end":
            return self.vocabulary - 1, self.vocabulary - 1
        return 0, self.ranges[entry.function or 0] - 1

    # -- drawing prompts (these load torch) -------------------------------------------------

    def sample(
        self, batch: int, generator: torch.Generator, active_hops: int | None = None
    ) -> Prompts:
        """Draw prompts; see `composition.sampling.sample`."""
        from composition import sampling

        return sampling.sample(self, batch, generator, active_hops)

    def continue_chain(
        self, prompts: Prompts, hop: int, value: Int[torch.Tensor, " batch"]
    ) -> Int[torch.Tensor, " batch"]:
        """The answer when the chain goes on from `i_hop = value`; see `composition.sampling`."""
        from composition import sampling

        return sampling.continue_chain(self, prompts, hop, value)

    def counterfactual(
        self, prompts: Prompts, hop: int, generator: torch.Generator
    ) -> CounterfactualPairs:
        """Pairs in which only `i_hop` and what follows differ; see `composition.sampling`."""
        from composition import sampling

        return sampling.counterfactual(self, prompts, hop, generator)

    # -- what a guess is worth --------------------------------------------------------------

    def chance(self, hop: int) -> float:
        """Accuracy of a blind guess of `i_hop`.

        Raises:
            ValueError: hop outside `0 … L`.
        """
        return 1 / self.ranges[self.check_hop(hop)]

    def frequency_baseline(self, hop: int | None = None) -> float:
        """Accuracy of guessing `i_hop` as the most frequent value of the table in sight.

        The table in sight is the part of `z_hop` that the query selects: a model gets this
        far by reading the query and counting, without following any chain. It is computed
        exactly: the visited entry is uniform among the `D` of the sub-table, so the guess is
        right with probability `E[largest count] / D` for `D` balls in `range` bins.

        Args:
            hop: which `i_hop`; the answer `i_L` if None. For hop 0 this is chance.

        Raises:
            ValueError: hop outside `0 … L`.
        """
        hop = self.check_hop(self.hops if hop is None else hop)
        if hop == 0:
            return self.chance(0)
        balls = self.candidates(hop)
        return _expected_largest_count(balls, self.ranges[hop]) / balls

    def check_hop(self, hop: int) -> int:
        """`hop` itself if the chain has it.

        Raises:
            ValueError: hop outside `0 … L`.
        """
        if not 0 <= hop <= self.hops:
            raise ValueError(
                f"hop {hop} is not on a chain of {self.hops} hops: use 0 … {self.hops}"
            )
        return hop


def _expected_largest_count(balls: int, bins: int) -> float:
    """E[max count] of `balls` uniform balls in `bins` bins.

    Counts of a multinomial are independent Poisson counts conditioned on their sum, so
    P(max <= k) = [x^balls] (sum_{j<=k} p_j x^j)^bins / P(sum = balls) with Poisson
    probabilities p_j of mean balls / bins: products of probabilities, which do not overflow.
    """
    import numpy as np

    def poisson(count: int, mean: float) -> float:
        return math.exp(count * math.log(mean) - mean - math.lgamma(count + 1))

    pmf = np.array([poisson(count, balls / bins) for count in range(balls + 1)])
    expectation = 0.0
    for k in range(balls):  # E[max] = sum_k P(max > k)
        base = np.where(np.arange(balls + 1) <= k, pmf, 0.0)
        power = np.eye(1, balls + 1)[0]
        exponent = bins
        while exponent:  # power by repeated squaring, truncated at x^balls
            if exponent & 1:
                power = np.convolve(power, base)[: balls + 1]
            base = np.convolve(base, base)[: balls + 1]
            exponent >>= 1
        expectation += 1 - power[balls] / poisson(balls, balls)
    return float(expectation)
