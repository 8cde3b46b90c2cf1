"""Public hybrids: each name's layers, heads and head dimension are those of transformers' config.

The config class is filled in with the fields of the checkpoint's published config.json that
differ from its defaults. Where the class has a rule of its own, other depths are compared too.
"""

import pytest
from transformers import CONFIG_MAPPING

from composition import PUBLIC_HYBRIDS, check_schedule, named_schedule, predict_progress
from composition.schedules import attention_layers

LINEAR = {
    "qwen3-next": "gated-deltanet",
    "qwen3.5": "gated-deltanet",
    "olmo-hybrid": "gated-deltanet",
    "kimi-linear": "kda",
    "jamba": "mamba2",
    "minimax-01": "retnet",
    "granite-4-h": "mamba2",
    "bamba-9b": "mamba2",
    "zamba2": "mamba2",
    "lfm2-350m": "short-conv",
    "recurrent-gemma": "gla",
}
HYBRID = {"zamba2": ("full", "mamba2"), "falcon-h1": ("full+mamba2",)}

PUBLISHED: dict[str, dict] = {
    "qwen3-next": {},
    "qwen3.5": {},
    "olmo-hybrid": {},
    "kimi-linear": {
        "linear_attn_config": {  # counted from 1
            "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
            "kda_layers": [layer for layer in range(1, 27) if layer % 4],
        }
    },
    "jamba": {},
    "minimax-01": {
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "head_dim": 128,
        "hidden_size": 6144,
        "layer_types": (["linear_attention"] * 7 + ["full_attention"]) * 10,
    },
    "granite-4-h": {
        "num_hidden_layers": 40,
        "layer_types": [
            "full_attention" if layer in (5, 15, 25, 35) else "linear_attention"
            for layer in range(40)
        ],
    },
    "bamba-9b": {"attn_layer_indices": [9, 18, 27]},
    "zamba2": {},
    "falcon-h1": {
        "num_hidden_layers": 44,
        "num_attention_heads": 12,
        "head_dim": 128,
        "hidden_size": 3072,
    },
    "lfm2-350m": {
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "hidden_size": 1024,
        "full_attn_idxs": [2, 5, 8, 10, 12, 14],
    },
    "recurrent-gemma": {},
}


def config_of(name: str, **fields):
    return CONFIG_MAPPING[PUBLIC_HYBRIDS[name].model_type](**fields)


def translated(name: str, config) -> tuple[str, ...]:
    """transformers' layer types in our words."""
    words = {
        "full_attention": ("full",),
        "sliding_attention": ("sliding",),
        "linear_attention": (LINEAR.get(name),),
        "conv": (LINEAR.get(name),),
        "hybrid": HYBRID.get(name, ()),
    }
    assert len(config.layer_types) == config.num_hidden_layers
    return tuple(kind for word in config.layer_types for kind in words[word])


@pytest.mark.parametrize("name", PUBLIC_HYBRIDS)
def test_the_checkpoint(name):
    hybrid, config = PUBLIC_HYBRIDS[name], config_of(name, **PUBLISHED[name])
    assert named_schedule(name) == translated(name, config)
    assert hybrid.n_layers == config.num_hidden_layers
    assert hybrid.heads == config.num_attention_heads
    dimension = getattr(config, "head_dim", None) or config.hidden_size // hybrid.heads
    if name == "kimi-linear":  # there head_dim is the rotary part of a key alone
        dimension = config.qk_head_dim
    assert hybrid.head_dimension == dimension


@pytest.mark.parametrize(
    "name",
    ["qwen3-next", "qwen3.5", "olmo-hybrid", "jamba", "falcon-h1", "recurrent-gemma"],
)
@pytest.mark.parametrize("depth", [2, 3, 4, 5, 13, 40, 64])
def test_another_depth_by_the_rule_of_the_class(name, depth):
    config = config_of(name, num_hidden_layers=depth)
    assert named_schedule(name, depth) == translated(name, config)


@pytest.mark.parametrize(
    ("name", "depth", "full"),
    [
        ("kimi-linear", 8, [3, 7]),
        ("kimi-linear", 10, [3, 7, 9]),
        ("minimax-01", 20, [7, 15]),
        ("granite-4-h", 20, [5, 15]),
        ("bamba-9b", 20, [9, 18]),
        ("bamba-9b", 9, []),
    ],
)
def test_another_depth_where_positions_are_published(name, depth, full):
    schedule = named_schedule(name, depth)
    assert len(schedule) == depth
    assert [layer for layer, kind in enumerate(schedule) if kind == "full"] == full


def test_defaults_that_checkpoints_override():
    """Left to itself the class has other layers: if it learns better, this table can shrink."""
    default = config_of("kimi-linear").layer_types
    assert [layer for layer, word in enumerate(default) if word == "full_attention"] == [
        *range(4, 27, 4)
    ]
    assert set(config_of("minimax-01").layer_types[::2]) == {"full_attention"}
    assert set(config_of("granite-4-h").layer_types) == {"linear_attention"}
    assert set(config_of("bamba-9b").layer_types) == {"linear_attention"}
    assert set(config_of("lfm2-350m").layer_types) == {"full_attention"}


@pytest.mark.parametrize("name", PUBLIC_HYBRIDS)
def test_the_theory_knows_every_layer(name):
    schedule = check_schedule(named_schedule(name))
    hops = attention_layers(schedule) + 1
    end = predict_progress(schedule, hops)[-1]
    seen = predict_progress(schedule, hops, window_reaches_table=True)[-1]
    longer = predict_progress(schedule, hops + 5, window_reaches_table=True)[-1]
    assert (seen.lower, seen.upper) == (longer.lower, longer.upper), "the hops shown cap nothing"
    full = sum("full" in kind for kind in schedule)
    expected = {"falcon-h1": (full - 1, full), "recurrent-gemma": (0, 1)}
    assert (end.lower, end.upper) == expected.get(name, (full, full + 1))


def test_zamba2_counts_its_shared_block_and_its_mamba_layer():
    schedule = named_schedule("zamba2")
    assert len(schedule) == 54 + 9
    assert schedule.count("mamba2") == 54
    assert all(schedule[i + 1] == "mamba2" for i, kind in enumerate(schedule) if kind == "full")


def test_bad_questions_name_the_way_out():
    with pytest.raises(ValueError, match=r"hybrid 'qwen4'; use one of qwen3-next, .*list the lay"):
        named_schedule("qwen4")
    with pytest.raises(ValueError, match=r"jamba with 0 layers: it has at least 1;.*own 32"):
        named_schedule("jamba", 0)
    with pytest.raises(ValueError, match=r"olmo-hybrid with 1 layers: it has at least 2"):
        named_schedule("olmo-hybrid", 1)
    for name, depth in (("lfm2-350m", 16), ("zamba2", 54)):
        assert named_schedule(name, depth) == named_schedule(name)
        with pytest.raises(ValueError, match=rf"published for {depth} layers.*list the layers"):
            named_schedule(name, depth - 1)
