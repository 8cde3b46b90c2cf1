"""The model: an embedding, layers after a schedule, an unembedding, and hook points between."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformer_lens import HookedRootModule
from transformer_lens.hook_points import HookPoint

from architectures.block import Block, Norm
from architectures.config import ModelConfig
from architectures.display import stack_html
from architectures.embedding import PromptEmbedding
from architectures.hooking import is_watched
from architectures.mixers import RecurrentLayer
from architectures.past import ModelState, Past


class HookedStack(HookedRootModule):
    """Full-attention and linear layers in the order of `config.schedule`, TransformerLens style.

    Called on tokens `[batch, position]` it returns logits `[batch, position, value]`; the
    answer is read at the last position. A prompt may come in pieces (`return_state`).
    `run_with_hooks`, `run_with_cache` and `transformer_lens.patching` work on it. Hook names:
    `hook_embed`, `hook_pos_embed`, `blocks.{i}.hook_resid_pre|mid|post`,
    `blocks.{i}.hook_attn_out` (the mixer's output, whatever its kind), `blocks.{i}.hook_mlp_out`,
    and inside a layer those of `FullAttention` under `blocks.{i}.attn`, those of
    `RecurrentLayer` under `blocks.{i}.linear_attn`.

    Args:
        config: what to build.
        seed: of the initial weights; the global random state is neither read nor changed.
    """

    def __init__(self, config: ModelConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.embed = PromptEmbedding(config.task, config.d_model)
        self.hook_embed, self.hook_pos_embed = HookPoint(), HookPoint()
        self.blocks = nn.ModuleList(Block(config, kind) for kind in config.schedule)
        self.ln_final = Norm(config)
        self.unembed = nn.Parameter(torch.empty(config.d_model, config.task.n_values))
        self._initialise(torch.Generator().manual_seed(seed))
        self.setup()
        self._compiled: Callable[..., Tensor] | None = None
        self._compiled_heard: Callable[..., Tensor] | None = None

    def forward(
        self,
        tokens: Int[Tensor, "batch position"],
        state: ModelState | None = None,
        return_state: bool = False,
    ) -> Any:
        """Logits `[batch, position, value]` for the value at every position.

        Args:
            tokens: prompts, or with `return_state` or `state` a piece of them of any length.
            state: what an earlier call returned; `tokens` go on where it ended.
            return_state: return `(logits, state)`, with which the prompts can go on.

        Raises:
            ValueError: tokens that are not prompts of the config's task or go past its last
                position, a state of another model or batch, or an embedding that is not finite.
        """
        if torch.compiler.is_compiling():
            _refuse_compilation()
        whole = state is None and not return_state
        if whole and tokens.shape[-1] != self.config.task.length:
            raise ValueError(
                f"tokens have shape {tuple(tokens.shape)}, but the task's prompts are "
                f"[batch, {self.config.task.length}]; give a piece of a prompt with "
                "return_state=True"
            )
        first, pasts = self._pasts(state)
        residual = self._stream(tokens, first)
        if self._compiled is not None and whole and not self._is_watched():
            return self._compiled(residual)
        logits = self._logits(residual, pasts)
        if not return_state:
            return logits
        kept = tuple(past.kept for past in pasts)
        return logits, ModelState(first + tokens.shape[1], kept)

    def _repr_html_(self) -> str:
        """The layers as a diagram, for notebooks."""
        return stack_html(self.config, sum(weight.numel() for weight in self.parameters()))

    def answers(
        self, tokens: Int[Tensor, "batch position"], questions: int = 1
    ) -> Float[Tensor, "batch value"]:
        """Logits of the answer alone, without what it does not hear of the last layer.

        The numbers are those of `model(tokens)[:, -1]`, which is also what runs where there are
        hooks, so that they see whole prompts.

        Args:
            tokens: whole prompts.
            questions: how many rows have the same functions: as `sampling.ask` lays them out, one
                question of all prompts after the other. The functions then run once.

        Raises:
            ValueError: as for a call, rows that do not share their functions, or several
                questions where the task does not put them last.
        """
        if tokens.shape[-1] != self.config.task.length:
            return self(tokens)  # which says what is wrong
        begin = self._shared_positions(tokens, questions)
        if self._is_watched():
            return self(tokens)[:, -1]
        functions = self._stream(tokens[: len(tokens) // questions, :begin], 0) if begin else None
        heard = self._compiled_heard or self._heard
        return heard(functions, self._stream(tokens[:, begin:], begin), questions)

    def _heard(self, functions: Tensor | None, residual: Tensor, questions: int) -> Tensor:
        """Logits of the last position, from what enters at the functions and what follows them."""
        pasts = [Past() for _ in self.blocks]
        if functions is not None:
            begin = functions.shape[1]
            for block, past in zip(self.blocks[:-1], pasts, strict=False):
                functions = block(functions, past)
            last = self.blocks[-1]
            assert isinstance(last, Block)
            last.absorb(functions, pasts[-1])
            pasts = [Past(begin, past.kept, copies=questions) for past in pasts]
        for layer, (block, past) in enumerate(zip(self.blocks, pasts, strict=True)):
            residual = block(residual, past, 1 if layer == len(self.blocks) - 1 else None)
        return self.read_out(residual)[:, -1]

    def _shared_positions(self, tokens: Tensor, questions: int) -> int:
        """How many positions the rows of one prompt's questions share: all but start and query."""
        if questions == 1:
            return 0
        task = self.config.task
        if task.order != "backward":
            raise ValueError(
                f"{questions} questions of one prompt need the functions in front, but in "
                f"{task.order} order the question comes first; use questions=1"
            )
        begin = task.start_position
        if questions < 1 or len(tokens) % questions:
            raise ValueError(
                f"{len(tokens)} rows are not {questions} questions of each of some prompts"
            )
        by_question = tokens[:, :begin].unflatten(0, (questions, -1))
        if not torch.equal(by_question, by_question[:1].expand_as(by_question)):
            raise ValueError(
                f"rows {len(tokens) // questions} apart have different functions; lay the "
                f"{questions} questions out as `composition.sampling.ask` does"
            )
        return begin

    def _stream(self, tokens: Tensor, first: int) -> Float[Tensor, "batch position d_model"]:
        """What enters the first layer at the positions of a piece."""
        token_part, position_part = self.embed(tokens, first)
        residual = self.hook_embed(token_part) + self.hook_pos_embed(position_part)
        _check_finite(residual)
        return residual

    def _logits(self, residual: Tensor, pasts: list[Past] | None = None) -> Tensor:
        pasts = pasts or [Past() for _ in self.blocks]
        for block, past in zip(self.blocks, pasts, strict=True):
            residual = block(residual, past)
        return self.read_out(residual)

    def read_out(self, residual: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch value"]:
        """The logits of a residual stream after the last layer."""
        return self.ln_final(residual) @ self.unembed

    def _pasts(self, state: ModelState | None) -> tuple[int, list[Past]]:
        if state is None:
            return 0, [Past() for _ in self.blocks]
        if len(state.layers) != len(self.blocks):
            raise ValueError(
                f"the state is of a model with {len(state.layers)} layers, but this one has "
                f"{len(self.blocks)}; continue with the model that returned it"
            )
        return state.position, [Past(state.position, layer) for layer in state.layers]

    def open_states(self, layer: int, positions: Iterable[int] | None = None) -> list[str]:
        """Make the recurrent states after `positions` hookable, as `…hook_state.{position}`.

        A hook there gets the state `[batch, head, key, value]` after that position (with one
        more value column, the sum of the keys, where the mixer is normalised). What it returns
        is what every later position sees; nothing up to the position changes. Watching a state
        splits the layer's run there, so it costs time in proportion to the positions watched.

        Args:
            layer: a linear layer with a recurrent state.
            positions: of the prompt; all of them if None, with a warning of the memory. An
                empty list closes the layer's states.

        Returns:
            The new hook points' names.

        Raises:
            ValueError: a layer without a recurrent state, or a position that no prompt has.
        """
        mixer = self.recurrent_layer(layer)
        length = self.config.task.length
        chosen = list(range(length)) if positions is None else sorted(set(positions))
        for position in chosen:
            if not 0 <= position < length:
                raise ValueError(
                    f"position {position} is outside the task's prompts of {length} tokens, "
                    f"0 … {length - 1}"
                )
        if positions is None:
            size = 4 * length * self.config.linear_heads * self.config.d_key * self.config.d_value
            warnings.warn(
                f"all {length} states of layer {layer} take {size / 2**10:,.0f} KiB a prompt when "
                "cached, and the run goes position by position; give positions to read a few",
                stacklevel=2,
            )
        mixer.open_states(chosen)
        self.setup()  # TransformerLens looks hook points up in the table that this makes
        return [f"blocks.{layer}.linear_attn.hook_state.{position}" for position in chosen]

    def recurrent_layer(self, layer: int) -> RecurrentLayer:
        """The layer's recurrence.

        Raises:
            ValueError: no such layer, or one that has no recurrent state.
        """
        self.check_layer(layer)
        mixer = getattr(self.blocks[layer], "linear_attn", None)
        if not isinstance(mixer, RecurrentLayer):
            raise ValueError(
                f"layer {layer} is {self.config.schedule[layer]!r} and has no recurrent state"
            )
        return mixer

    def check_layer(self, layer: int) -> None:
        """Raise a ValueError unless the stack has this layer."""
        if not 0 <= layer < self.config.n_layers:
            raise ValueError(f"layer {layer} is outside the stack's 0 … {self.config.n_layers - 1}")

    def compile(self, **options: Any) -> None:
        """Have `torch.compile` make the layers' forward and backward pass, with its options.

        Whole prompts on an unwatched stack then run compiled; with a hook anywhere, or a prompt
        in pieces, the stack runs as it is written, so that no hook is passed over.
        """
        self._compiled = torch.compile(self._logits, **options)
        self._compiled_heard = torch.compile(self._heard, **options)

    def _is_watched(self) -> bool:
        return any(is_watched(module) for module in self.modules() if module is not self)

    @property
    def cfg(self) -> SimpleNamespace:
        """The sizes that TransformerLens' own tools ask a model for."""
        return SimpleNamespace(
            n_layers=self.config.n_layers,
            n_heads=self.config.n_heads,
            n_key_value_heads=self.config.n_kv_heads,
            d_model=self.config.d_model,
            d_head=self.config.head_dimension,
            device=self.unembed.device,
        )

    @torch.no_grad()
    def _initialise(self, generator: torch.Generator) -> None:
        """Random weights that keep the residual stream near unit size; biases and gains stay."""
        depth = (2 * self.config.n_layers) ** -0.5
        for name, parameter in self.named_parameters():
            last = name.rpartition(".")[2]
            if not (last.startswith("W_") or name.startswith(("embed.", "unembed"))):
                continue  # gains, biases and rates were set where they were made
            if name.startswith("embed.") and last != "argument_map":
                std = 1.0
            else:
                heads = parameter.shape[0] if last == "W_O" and parameter.dim() == 3 else 1
                fan_in = parameter.shape[-2] * heads
                std = fan_in**-0.5 * (depth if name.endswith(("W_O", "W_out")) else 1.0)
            parameter.normal_(0.0, std, generator=generator)


@torch.compiler.assume_constant_result
def _refuse_compilation() -> None:
    """Called while `torch.compile` reads the forward pass, which would fix its hooks for good."""
    raise RuntimeError(
        "torch.compile around a HookedStack would pass over hooks that are added later: "
        "call model.compile() instead and use the model itself"
    )


def _check_finite(residual: Tensor) -> None:
    finite = residual.isfinite()
    if not finite.all():
        prompt, position = (~finite).any(-1).nonzero()[0].tolist()
        raise ValueError(
            f"the embedding of prompt {prompt} is not finite at position {position} of this call: "
            "look at the embedding's weights, or at a hook that writes there"
        )
