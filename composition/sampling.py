"""Drawing prompts, following their chains, and changing one entry at a time.

Every tensor of values is int64; `[batch]` always comes first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Int
from torch import Tensor

from composition.display import prompt_html
from composition.task import CompositionTask

SHOWN = 2
"""Prompts of a batch that a notebook shows."""


@dataclass(frozen=True)
class Prompts:
    """A batch of prompts and what is true of them.

    Attributes:
        tokens: `[batch, position]`, what the model sees.
        chain: `[batch, hops + 1]`, the values `i_0 … i_L`.
        active: `[batch]`, how many of the functions were drawn rather than the identity.
        task: whose prompts they are.
    """

    tokens: Int[Tensor, "batch position"]
    chain: Int[Tensor, "batch hops_plus_one"]
    active: Int[Tensor, " batch"]
    task: CompositionTask

    @property
    def answer(self) -> Int[Tensor, " batch"]:
        """`i_L`."""
        return self.chain[:, -1]

    def __len__(self) -> int:
        return self.tokens.shape[0]

    @staticmethod
    def concatenate(parts: Sequence[Prompts]) -> Prompts:
        """All prompts of the parts, in order."""
        return Prompts(
            torch.cat([part.tokens for part in parts]),
            torch.cat([part.chain for part in parts]),
            torch.cat([part.active for part in parts]),
            parts[0].task,
        )

    def __getitem__(self, rows: slice | Tensor) -> Prompts:
        """The prompts at `rows` (a slice, a mask or indices)."""
        return Prompts(self.tokens[rows], self.chain[rows], self.active[rows], self.task)

    def to(self, device: torch.device | str) -> Prompts:
        """The same prompts on another device."""
        tokens, chain = self.tokens.to(device), self.chain.to(device)
        return Prompts(tokens, chain, self.active.to(device), self.task)

    def labels(self, row: int = 0) -> list[str]:
        """The tokens of one prompt as a person would write them: "z2[w1=1,i=3] -> 4"."""
        tokens = self.tokens[row].tolist()
        return [self.task.token_label(place, token) for place, token in enumerate(tokens)]

    def _repr_html_(self) -> str:
        """The first prompts as tables, for notebooks."""
        shown = [
            prompt_html(
                self.task,
                self.tokens[row].tolist(),
                self.chain[row].tolist(),
                title=f"prompt {row} of {len(self)}",
            )
            for row in range(min(len(self), SHOWN))
        ]
        more = f"<div>… and {len(self) - SHOWN} more</div>" if len(self) > SHOWN else ""
        return "".join(shown) + more


@dataclass(frozen=True)
class CounterfactualPairs:
    """Prompts and their minimal variations, row by row.

    Attributes:
        clean: the prompts that could be varied.
        corrupted: one visited entry differs; `i_hop`, what follows and the answer change.
        off_path: one entry differs that the clean chain never visits; the chain is unchanged.
        rows: `[kept]`, which of the prompts given are in `clean`. A row is left out when no
            single entry of that hop can change the answer.
    """

    clean: Prompts
    corrupted: Prompts
    off_path: Prompts
    rows: Int[Tensor, " kept"]

    def __len__(self) -> int:
        return len(self.clean)

    def __getitem__(self, rows: slice | Tensor) -> CounterfactualPairs:
        """The pairs at `rows` (a slice, a mask or indices)."""
        return CounterfactualPairs(
            self.clean[rows], self.corrupted[rows], self.off_path[rows], self.rows[rows]
        )

    def to(self, device: torch.device | str) -> CounterfactualPairs:
        """The same pairs on another device."""
        clean, corrupted, off_path = (
            side.to(device) for side in (self.clean, self.corrupted, self.off_path)
        )
        return CounterfactualPairs(clean, corrupted, off_path, self.rows.to(device))


def sample(
    task: CompositionTask,
    batch: int,
    generator: torch.Generator,
    active_hops: int | None = None,
) -> Prompts:
    """Draw `batch` prompts with uniform functions, start and query.

    Args:
        active_hops: None for the task itself. With k, each prompt makes 1 … k of its
            functions (how many and which: uniform) uniform and the others the identity
            `(w, i) -> i`: a prompt of fewer hops in the same shape, to learn from first.

    Raises:
        ValueError: active_hops outside `1 … L`, or batch below 1.
    """
    if batch < 1:
        raise ValueError(f"batch is {batch}, but at least one prompt must be drawn")
    device = generator.device
    tokens = torch.empty(batch, task.length, dtype=torch.int64, device=device)
    active = _active_functions(task, batch, generator, active_hops)
    for hop in range(1, task.hops + 1):
        place = task.positions[f"z{hop}"]
        shape = (batch, task.domains[hop - 1])
        table = torch.randint(task.ranges[hop], shape, generator=generator, device=device)
        identity = torch.arange(task.domains[hop - 1], device=device) % task.candidates(hop)
        tokens[:, place] = torch.where(active[:, hop - 1, None], table, identity)
    start = torch.randint(task.start_domain, (batch,), generator=generator, device=device)
    tokens[:, task.start_position] = start
    if task.query:
        query = torch.randint(task.n_queries, (batch,), generator=generator, device=device)
        tokens[:, task.positions["query"].start] = task.n_values + query
    if task.order == "forward":
        tokens[:, -1] = task.vocabulary - 1
    return Prompts(tokens, follow_chain(task, tokens), active.sum(1), task)


def _active_functions(
    task: CompositionTask, batch: int, generator: torch.Generator, active_hops: int | None
) -> Tensor:
    """`[batch, hops]`, True where the function is uniform rather than the identity."""
    device = generator.device
    if active_hops is None:
        return torch.ones(batch, task.hops, dtype=torch.bool, device=device)
    if not 1 <= active_hops <= task.hops:
        raise ValueError(
            f"active_hops is {active_hops}, but a chain of {task.hops} hops has 1 … {task.hops} "
            "functions to make active (None makes all of them active in every prompt)"
        )
    count = torch.randint(1, active_hops + 1, (batch, 1), generator=generator, device=device)
    rank = torch.rand(batch, task.hops, generator=generator, device=device).argsort(1).argsort(1)
    return rank < count


def ask(
    task: CompositionTask, prompts: Prompts, questions: int, generator: torch.Generator
) -> Prompts:
    """The prompts' functions under `questions` starts and queries each, `questions * batch` rows.

    The first `batch` rows are the prompts themselves; then comes a second question of each, and
    so on. Every row alone is a prompt of the task like any other.

    Raises:
        ValueError: questions below 1.
    """
    if questions < 1:
        raise ValueError(f"questions is {questions}, but a prompt asks at least one")
    rows = (questions - 1) * len(prompts)
    tokens = prompts.tokens.repeat(questions, 1)
    drawn = {task.start_position: (0, task.start_domain)}
    if task.query:
        drawn[task.positions["query"].start] = (task.n_values, task.n_values + task.n_queries)
    for position, (lowest, end) in drawn.items():
        new = torch.randint(lowest, end, (rows,), generator=generator, device=tokens.device)
        tokens[len(prompts) :, position] = new
    return Prompts(tokens, follow_chain(task, tokens), prompts.active.repeat(questions), task)


def share_query(task: CompositionTask, prompts: Prompts, other: Prompts) -> Prompts:
    """`prompts` with the queries of `other`, row by row, and the chains that follow."""
    if not task.query:
        return prompts
    place = task.positions["query"]
    tokens = prompts.tokens.clone()
    tokens[:, place] = other.tokens[:, place]
    return Prompts(tokens, follow_chain(task, tokens), prompts.active, task)


def redraw_unvisited(
    task: CompositionTask, prompts: Prompts, generator: torch.Generator
) -> Prompts:
    """Prompts with the same chain, and every entry that it does not visit drawn anew."""
    other = sample(task, len(prompts), generator).tokens
    kept = torch.zeros_like(other, dtype=torch.bool)
    for hop in range(task.hops + 1):
        kept.scatter_(1, visited_position(task, prompts, hop)[:, None], True)
    for name in ("query", "end"):
        if name in task.positions:
            kept[:, task.positions[name]] = True
    return replace(prompts, tokens=torch.where(kept, prompts.tokens, other))


def share_argument(task: CompositionTask, prompts: Prompts, other: Prompts, hop: int) -> Prompts:
    """`prompts` changed in one entry, so that `i_{hop-1}` is that of `other`, row by row.

    With the same query both then visit the same entry of `z_hop`.

    Raises:
        ValueError: hop outside `1 … L`.
    """
    if not 1 <= hop <= task.hops:
        raise ValueError(f"z_{hop} is not one of the functions: use 1 … {task.hops}")
    place = visited_position(task, prompts, hop - 1)
    tokens = prompts.tokens.scatter(1, place[:, None], other.chain[:, hop - 1, None])
    return Prompts(tokens, follow_chain(task, tokens), prompts.active, task)


def follow_chain(
    task: CompositionTask, tokens: Int[Tensor, "batch position"]
) -> Int[Tensor, "batch hops_plus_one"]:
    """The chain `i_0 … i_L` that the tokens spell out."""
    chain = [tokens[:, task.start_position]]
    for hop in range(1, task.hops + 1):
        chain.append(apply_function(task, tokens, hop, chain[-1]))
    return torch.stack(chain, dim=1)


def continue_chain(
    task: CompositionTask, prompts: Prompts, hop: int, value: Int[Tensor, " batch"]
) -> Int[Tensor, " batch"]:
    """The answer `i_L` when the chain is resumed from `i_hop = value`.

    The prompts' own functions and query carry it on. For `hop = L` the answer is `value`.

    Raises:
        ValueError: hop outside `0 … L`, `value` of another batch, or a value outside the
            range of `i_hop`.
    """
    task.check_hop(hop)
    if value.shape != (len(prompts),):
        raise ValueError(
            f"value has shape {tuple(value.shape)}, but there are {len(prompts)} prompts"
        )
    if len(value) and not 0 <= int(value.min()) <= int(value.max()) < task.ranges[hop]:
        raise ValueError(
            f"i_{hop} takes the values 0 … {task.ranges[hop] - 1}, but value holds others"
        )
    for following in range(hop + 1, task.hops + 1):
        value = apply_function(task, prompts.tokens, following, value)
    return value


def visited_position(task: CompositionTask, prompts: Prompts, hop: int) -> Int[Tensor, " batch"]:
    """`[batch]`, the position of the entry that gives `i_hop`: the start's for hop 0."""
    if task.check_hop(hop) == 0:
        return torch.full((len(prompts),), task.start_position, device=prompts.tokens.device)
    return _entry_position(task, prompts.tokens, hop, prompts.chain[:, hop - 1])


def apply_function(
    task: CompositionTask,
    tokens: Int[Tensor, "batch position"],
    hop: int,
    value: Int[Tensor, " batch"],
) -> Int[Tensor, " batch"]:
    """`z_hop(w_{hop-1}, value)` with the functions and the query of the prompts."""
    return tokens.gather(1, _entry_position(task, tokens, hop, value)[:, None])[:, 0]


def _entry_position(task: CompositionTask, tokens: Tensor, hop: int, value: Tensor) -> Tensor:
    """`[batch]`, the position of the entry of `z_hop` whose argument is `(w_{hop-1}, value)`."""
    index = value
    if hop > 1 and task.query:
        query = tokens[:, task.positions["query"].start] - task.n_values
        faster = math.prod(task.branching[hop - 1 :])  # values of the parts that vary faster
        part = query // faster % task.branching[hop - 2]
        index = part * task.candidates(hop) + value
    return task.positions[f"z{hop}"].start + index


def counterfactual(
    task: CompositionTask, prompts: Prompts, hop: int, generator: torch.Generator
) -> CounterfactualPairs:
    """Minimal pairs: the entry that gives `i_hop` changed, so that the answer changes too.

    The new value is uniform among those that change the answer. The off-path twin changes an
    unvisited entry of the same function to another value (for hop 0, of `z_1`).

    Raises:
        ValueError: hop outside `0 … L`, or no row can be varied.
    """
    task.check_hop(hop)
    batch, device = len(prompts), prompts.tokens.device
    # [batch, value]: what the answer would be if i_hop were each of its values
    answers = torch.stack(
        [
            continue_chain(task, prompts, hop, torch.full((batch,), value, device=device))
            for value in range(task.ranges[hop])
        ],
        dim=1,
    )
    changes = answers != prompts.answer[:, None]
    off_path_place = task.positions[f"z{max(hop, 1)}"]
    if off_path_place.stop - off_path_place.start < 2:
        raise ValueError(
            f"z{max(hop, 1)} has a single entry, which every chain visits: no off-path twin exists"
        )
    rows = changes.any(dim=1).nonzero()[:, 0]
    if len(rows) == 0:
        raise ValueError(
            f"in none of the {batch} prompts does a change of i_{hop} change the answer"
        )
    clean = prompts[rows]

    value = torch.multinomial(changes[rows].float(), 1, generator=generator)[:, 0]
    corrupted = clean.tokens.scatter(1, visited_position(task, clean, hop)[:, None], value[:, None])

    visited = visited_position(task, clean, max(hop, 1)) - off_path_place.start
    entries = off_path_place.stop - off_path_place.start
    shift = torch.randint(1, entries, (len(rows),), generator=generator, device=device)
    position = off_path_place.start + (visited + shift) % entries
    size = task.ranges[max(hop, 1)]
    old = clean.tokens.gather(1, position[:, None])[:, 0]
    step = torch.randint(1, size, (len(rows),), generator=generator, device=device)
    off_path = clean.tokens.scatter(1, position[:, None], ((old + step) % size)[:, None])

    return CounterfactualPairs(
        clean=clean,
        corrupted=Prompts(corrupted, follow_chain(task, corrupted), clean.active, task),
        off_path=Prompts(off_path, follow_chain(task, off_path), clean.active, task),
        rows=rows,
    )
