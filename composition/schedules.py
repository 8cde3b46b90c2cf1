"""Public hybrid models as schedules: which layer stands where in a model that people use.

`tests/test_schedules.py` compares every entry with the config class that transformers ships,
filled in as the public checkpoint fills it in. Checkpoints that list positions (Kimi Linear,
MiniMax-01, Granite, Bamba) happen to follow a period; that it goes on at other depths is our
reading. Positions count from 0 here; everything is arithmetic on names, and nothing is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass

from composition.theory import SOFTMAX_KINDS, check_schedule, parts

Rule = Callable[[int, int], tuple[str, ...]]
"""From a layer's position and the number of layers to the kinds it stands as, mostly one."""


def read_schedule(text: str, layers: int | None = None) -> tuple[str, ...]:
    """Comma-separated layers, or those of a public hybrid, perhaps at another depth, by its name.

    Raises:
        ValueError: neither, or a depth for what has no rule for it.
    """
    if text.strip() in PUBLIC_HYBRIDS:
        return named_schedule(text.strip(), layers)
    known = ", ".join(PUBLIC_HYBRIDS)
    if layers is not None:
        raise ValueError(f"--layers {layers} is for a public hybrid, {text!r} is none of {known}")
    kinds = tuple(part.strip() for part in text.split(","))
    try:
        return check_schedule(kinds)
    except ValueError as error:
        if len(kinds) > 1:
            raise
        raise ValueError(f"{error}; or the name of a public hybrid: {known}") from None


def named_schedule(name: str, n_layers: int | None = None) -> tuple[str, ...]:
    """The schedule of a public hybrid, at its own depth or at another one.

    Args:
        name: one of `PUBLIC_HYBRIDS`.
        n_layers: layers of the model; its own number if None. A period goes on or is cut, except
            where the published positions follow none. The schedule is longer than this for
            zamba2, whose hybrid layers are two entries each.

    Raises:
        ValueError: an unknown name, no layer at all, or a depth that the model's rule lacks.
    """
    if name not in PUBLIC_HYBRIDS:
        raise ValueError(
            f"unknown public hybrid {name!r}; use one of {', '.join(PUBLIC_HYBRIDS)}, "
            "or list the layers"
        )
    hybrid = PUBLIC_HYBRIDS[name]
    depth = hybrid.n_layers if n_layers is None else n_layers
    if depth < hybrid.fewest_layers:
        raise ValueError(
            f"{name} with {depth} layers: it has at least {hybrid.fewest_layers}; "
            f"give more, or leave the number out for its own {hybrid.n_layers}"
        )
    if depth != hybrid.n_layers and not hybrid.any_depth:
        raise ValueError(
            f"{name} with {depth} layers: its positions are published for {hybrid.n_layers} layers "
            "and follow no period; leave the number out, or list the layers"
        )
    return tuple(kind for layer in range(depth) for kind in hybrid.rule(layer, depth))


@dataclass(frozen=True)
class PublicHybrid:
    """A public checkpoint, as far as the theory asks.

    Attributes:
        title: the checkpoint.
        n_layers: its depth.
        rule: the kinds that the layer at a position stands as.
        heads, head_dimension: of its full (else sliding) attention, for the size condition.
        model_type: transformers' name for the class.
        note: in plain words, where our kind stands in for something else.
        any_depth: whether the rule says something at other depths.
        fewest_layers: depth from which it does.
    """

    title: str
    n_layers: int
    rule: Rule
    heads: int
    head_dimension: int
    model_type: str
    note: str = ""
    any_depth: bool = True
    fewest_layers: int = 1


def attention_layers(schedule: tuple[str, ...]) -> int:
    """How many layers attend with a softmax, in full or in a window, alone or beside another."""
    return sum(parts(kind)[0] in SOFTMAX_KINDS for kind in schedule)


def _every(period: int, place: int, linear: str, *, full: str = "full") -> Rule:
    """Full attention at the same place of every period, linear layers elsewhere."""
    return lambda layer, depth: (full if layer % period == place else linear,)


def _at(positions: Container[int], linear: str, *, full: tuple[str, ...] = ("full",)) -> Rule:
    """Full attention at explicit positions, linear layers elsewhere."""
    return lambda layer, depth: full if layer in positions else (linear,)


def _olmo_hybrid(layer: int, depth: int) -> tuple[str, ...]:
    """Every fourth layer; a stack too short for that has its last layer full."""
    return ("full" if layer % 4 == 3 or (depth < 4 and layer == depth - 1) else "gated-deltanet",)


def _kimi_linear(layer: int, depth: int) -> tuple[str, ...]:
    """Every fourth layer and the last, as in the checkpoint's list.

    transformers' default list, which the checkpoint overrides, stands one layer later.
    """
    return ("full" if layer % 4 == 3 or layer == depth - 1 else "kda",)


def _bamba(layer: int, depth: int) -> tuple[str, ...]:
    """Every ninth layer except the very first: 9, 18 and 27 of 32."""
    return ("full" if layer and layer % 9 == 0 else "mamba2",)


PUBLIC_HYBRIDS: dict[str, PublicHybrid] = {
    "qwen3-next": PublicHybrid(
        "Qwen3-Next-80B-A3B", 48, _every(4, 3, "gated-deltanet"), 16, 256, "qwen3_next"
    ),
    "qwen3.5": PublicHybrid(
        "Qwen3.5-9B",
        32,
        _every(4, 3, "gated-deltanet"),
        16,
        256,
        "qwen3_5_text",
        "other sizes follow the same rule at other depths",
    ),
    "olmo-hybrid": PublicHybrid(
        "Olmo-Hybrid-7B",
        32,
        _olmo_hybrid,
        30,
        128,
        "olmo_hybrid",
        "its Gated DeltaNet has beta in (0, 2)",
        fewest_layers=2,
    ),
    "kimi-linear": PublicHybrid(
        "Kimi-Linear-48B-A3B",
        27,
        _kimi_linear,
        32,
        192,
        "kimi_linear",
        'MLA stands as "full", with the 128 + 64 dimensions of its keys',
    ),
    "jamba": PublicHybrid(
        "Jamba-v0.1", 32, _every(8, 4, "mamba2"), 32, 128, "jamba", 'Mamba-1 stands as "mamba2"'
    ),
    "minimax-01": PublicHybrid(
        "MiniMax-Text-01",
        80,
        _every(8, 7, "retnet"),
        64,
        128,
        "minimax",
        'lightning attention stands as "retnet"',
    ),
    "granite-4-h": PublicHybrid(
        "Granite-4.0-H-Small", 40, _every(10, 5, "mamba2"), 32, 128, "granitemoehybrid"
    ),
    "bamba-9b": PublicHybrid("Bamba-9B", 32, _bamba, 32, 128, "bamba"),
    "zamba2": PublicHybrid(
        "Zamba2-2.7B",
        54,
        # The layer is h + mamba(norm(h + full(h, embedding))): the full block speaks to its own
        # Mamba only. With a wider stream that is full into the new part, then mamba2 reading both.
        _at((6, 12, 18, 24, 30, 36, 42, 47, 51), "mamba2", full=("full", "mamba2")),
        32,
        160,
        "zamba2",
        'a hybrid layer is two entries, "full" and the "mamba2" that reads it, so 54 layers are '
        '63 entries; "at least" ignores that the full blocks share weights',
        any_depth=False,
    ),
    "falcon-h1": PublicHybrid(
        "Falcon-H1-7B",
        44,
        _every(1, 0, "mamba2", full="full+mamba2"),
        12,
        128,
        "falcon_h1",
        "attention and Mamba-2 side by side in every layer",
    ),
    "lfm2-350m": PublicHybrid(
        "LFM2-350M",
        16,
        _at((2, 5, 8, 10, 12, 14), "short-conv"),
        16,
        64,
        "lfm2",
        any_depth=False,
    ),
    "recurrent-gemma": PublicHybrid(
        "RecurrentGemma-2B",
        26,
        _every(3, 2, "gla", full="sliding"),
        10,
        256,
        "recurrent_gemma",
        'RG-LRU stands as "gla"; its attention sees 2048 tokens and counts as linear, which a '
        "prompt that fits into them does not justify",
    ),
}
"""Public hybrids by the name that a command takes; each at the depth of the checkpoint."""
