"""Tokens and positions to the residual stream: one table of values wherever values occur.

A position's argument (the `i` of "z2[w1=1,i=3]") and the token that stands elsewhere as a
value are the same thing to the task, so they share a vector: an argument is the value's
vector sent through one learned matrix. A lookup then has to learn one match between
matrices, not one match for every value. Query parts share their table in the same way.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from composition import CompositionTask


class PromptEmbedding(nn.Module):
    """What stands in a prompt, as vectors `[batch, position, d_model]`.

        value entry:    value[token] + role + argument_map · (value[i] + query[w])
        start:          value[token] + role
        query, answer:  Σ_l query_l[w_l] + role

    Attributes:
        value: `[n_values, d_model]`.
        query: `[n_1 + … + n_{L-1}, d_model]`, a vector for each value of each query part.
        role: `[roles, d_model]`, a vector for each function, the start, the query, the end.
        argument_map: `[d_model, d_model]`, applied from the right.
    """

    # Indices that follow from the task: derived anew, never saved.
    role_of_position: Tensor
    function_positions: Tensor
    arguments: Tensor
    selected_positions: Tensor
    selecting_parts: Tensor
    parts_of_query: Tensor

    def __init__(self, task: CompositionTask, d_model: int) -> None:
        super().__init__()
        self.task = task
        roles = task.roles
        self.value = nn.Parameter(torch.empty(task.n_values, d_model))
        self.query = nn.Parameter(torch.empty(sum(task.branching) * task.query, d_model))
        self.role = nn.Parameter(torch.empty(len(roles), d_model))
        self.argument_map = nn.Parameter(torch.empty(d_model, d_model))

        offsets = [sum(task.branching[:part]) for part in range(len(task.branching))]
        role_of = [roles.index(entry.role) for entry in task.entries]
        functions = [(p, e) for p, e in enumerate(task.entries) if e.function is not None]
        part_of = [
            (p, offsets[e.function - 2] + e.query_part)
            for p, e in functions
            if task.query and e.function is not None and e.query_part is not None
        ]
        parts = [
            [offset + part for offset, part in zip(offsets, task.query_parts(query), strict=True)]
            for query in range(task.n_queries * task.query)
        ]
        self._index("role_of_position", role_of)
        self._index("function_positions", [p for p, _ in functions])
        self._index("arguments", [e.argument or 0 for _, e in functions])
        self._index("selected_positions", [p for p, _ in part_of])
        self._index("selecting_parts", [part for _, part in part_of])
        self._index("parts_of_query", parts)

    def _index(self, name: str, values: list) -> None:
        self.register_buffer(name, torch.tensor(values, dtype=torch.int64), persistent=False)

    def forward(
        self, tokens: Int[Tensor, "batch position"], first: int = 0
    ) -> tuple[Float[Tensor, "batch position d_model"], Float[Tensor, "batch position d_model"]]:
        """What the tokens and what their positions put into the residual stream.

        Args:
            tokens: a prompt, or a piece of one.
            first: position of the piece's first token.

        Raises:
            ValueError: tokens past the task's last position, or outside its vocabulary.
        """
        self._check(tokens, first)
        tables: list[Tensor] = [self.value]
        if self.task.query:
            tables.append(self.query[self.parts_of_query].sum(1))
        if self.task.order == "forward":
            tables.append(self.value.new_zeros(1, self.value.shape[1]))
        table = torch.cat(tables)
        positions = self._positions()[first : first + tokens.shape[1]]
        return F.embedding(tokens, table), positions.expand(len(tokens), -1, -1)

    def _positions(self) -> Float[Tensor, "position d_model"]:
        argument = self.value.new_zeros(self.task.length, self.value.shape[1])
        argument = argument.index_add(0, self.function_positions, self.value[self.arguments])
        argument = argument.index_add(0, self.selected_positions, self.query[self.selecting_parts])
        return self.role[self.role_of_position] + argument @ self.argument_map

    def _check(self, tokens: Tensor, first: int) -> None:
        if tokens.dim() != 2 or not 0 < tokens.shape[1] <= self.task.length - first:
            after = f" after the {first} positions before" if first else ""
            raise ValueError(
                f"tokens have shape {tuple(tokens.shape)}{after}, but the task's prompts are "
                f"[batch, {self.task.length}]"
            )
        if (
            tokens.numel()
            and not 0 <= int(tokens.min()) <= int(tokens.max()) < self.task.vocabulary
        ):
            raise ValueError(
                f"tokens range over {int(tokens.min())} … {int(tokens.max())}, but the task's "
                f"vocabulary is 0 … {self.task.vocabulary - 1}"
            )
