"""Views show what is measured: the numbers on a page are the model's, and the page is whole.

Held on models whose weights are written down, whose attention, hop maps and circuits are known.
"""

import base64
import gzip
import json
import re
from html.parser import HTMLParser
from importlib.resources import files

import numpy as np
import pytest
import torch
from circuitsvis.attention import attention_heads
from transformer_lens import TransformerBridge

from analyses.figures import to_png
from analyses.views import (
    View,
    attention_matrix,
    attention_view,
    beside,
    circuit_figure,
    effect_view,
    hop_map_figure,
    residual_effects,
)
from analyses.views.pictures import describe_hop_map
from analyses.views.viewers import bundle_html, viewer_html
from architectures import HookedStack, ModelConfig, effective_attention, hand_set_model
from composition import CompositionTask
from probes import circuit, hop_map
from probes.circuit import Circuit, Edge, Node

TASK = CompositionTask(start_domain=6, branching=(3,))
KNOWN = hand_set_model(TASK, "early-linear")


class Viewers(HTMLParser):
    """What a browser finds in the places where something is drawn."""

    def __init__(self, html):
        super().__init__()
        self.found = []
        self.pictures = []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if attributes.get("class") == "hoptrace-viewer":
            self.found.append(
                (attributes["data-component"], json.loads(attributes["data-properties"]))
            )
        if tag == "img":
            self.pictures.append(attributes)


def prompts(count=4, seed=0):
    return TASK.sample(count, torch.Generator().manual_seed(seed))


# -- attention ---------------------------------------------------------------------------------


def test_a_viewer_is_given_the_models_own_attention():
    drawn = prompts()
    found = Viewers(attention_view(KNOWN, drawn, row=1).html).found
    assert len(found) == 3
    for layer, (component, properties) in enumerate(found):
        expected = effective_attention(KNOWN, drawn.tokens[1:2], layer)[0]
        assert component == "AttentionHeads"
        np.testing.assert_allclose(properties["attention"], expected.numpy(), atol=5e-5)
        assert properties["tokens"] == drawn.labels(1)
        assert properties["tokens"][0] == TASK.token_label(0, int(drawn.tokens[1, 0]))
        assert properties["maxValue"] == -properties["minValue"]
        assert np.abs(properties["attention"]).max() <= properties["maxValue"] + 1e-4


def test_circuitsvis_itself_would_be_given_the_same_properties():
    """Its own writer, and its own names of the properties."""
    drawn = prompts()
    (_, properties), *_ = Viewers(attention_view(KNOWN, drawn, layers=[0]).html).found
    theirs = attention_heads(
        attention=np.array(properties["attention"]),
        tokens=properties["tokens"],
        attention_head_names=properties["attentionHeadNames"],
        max_value=properties["maxValue"],
        min_value=properties["minValue"],
        negative_color=properties["negativeColor"],
        positive_color=properties["positiveColor"],
        mask_upper_tri=properties["maskUpperTri"],
    ).cdn_src
    written = theirs[theirs.index("AttentionHeads,") + len("AttentionHeads,") :]
    assert json.JSONDecoder().raw_decode(written.strip())[0] == properties


def test_any_model_with_patterns_is_shown(generator):
    sizes = dict(n_layers=2, d_model=16, n_ctx=8, d_head=8, n_heads=2, d_vocab=20, d_mlp=16)
    model = TransformerBridge.boot_native(sizes | dict(act_fn="gelu")).eval()
    tokens = torch.randint(20, (3, 8), generator=generator)
    _, cache = model.run_with_cache(tokens)
    for layer in range(2):
        expected = cache[f"blocks.{layer}.attn.hook_pattern"]
        torch.testing.assert_close(attention_matrix(model, tokens, layer), expected)
    found = Viewers(attention_view(model, tokens, labels=list("abcdefgh")).html).found
    assert [properties["tokens"] for _, properties in found] == [list("abcdefgh")] * 2


def test_layers_that_are_no_weighted_sum_are_left_out(generator):
    config = ModelConfig(task=TASK, schedule=("full", "short-conv", "gla"), d_model=16)
    view = attention_view(HookedStack(config), prompts())
    assert "Layer 1, full" in view.html
    assert "Layer 3, gla" in view.html
    assert len(Viewers(view.html).found) == 2


def test_two_mixers_side_by_side_are_two_viewers():
    config = ModelConfig(task=TASK, schedule=("full+mamba2", "sliding+short-conv"), d_model=16)
    model, drawn = HookedStack(config), prompts()
    found = Viewers(attention_view(model, drawn).html).found
    _, cache = model.run_with_cache(drawn.tokens)
    expected = [
        cache["blocks.0.attn.hook_pattern"],
        effective_attention(model, drawn.tokens, 0),
        cache["blocks.1.attn.hook_pattern"],
    ]
    assert len(found) == len(expected)
    for (_, properties), weights in zip(found, expected, strict=True):
        np.testing.assert_allclose(properties["attention"], weights[0].detach(), atol=5e-5)


def test_where_nothing_can_be_shown_it_says_so():
    config = ModelConfig(task=TASK, schedule=("short-conv",), d_model=16)
    with pytest.raises(ValueError, match="nothing to show"):
        attention_view(HookedStack(config), prompts())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(row=4), "row 4 is none of the 4 prompts"),
        (dict(labels=["a"]), f"1 labels for {TASK.length} tokens"),
        (dict(layers=[7]), "7"),
    ],
)
def test_what_cannot_be_shown_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        attention_view(KNOWN, prompts(), **options)


def test_tokens_without_labels_and_long_prompts_are_refused():
    with pytest.raises(ValueError, match="give labels"):
        attention_view(KNOWN, prompts().tokens)
    long = CompositionTask(start_domain=60, branching=(4,))
    model = HookedStack(ModelConfig(task=long, schedule=("full",), d_model=8, n_heads=1))
    with pytest.raises(ValueError, match="256 at most"):
        attention_view(model, long.sample(1, torch.Generator()))


def test_numbers_that_are_none_are_refused():
    model = hand_set_model(TASK, "early-linear")
    hook = ("blocks.0.attn.hook_pattern", lambda pattern, hook: pattern * float("nan"))
    with model.hooks(fwd_hooks=[hook]), pytest.raises(ValueError, match="not finite"):
        attention_view(model, prompts(), layers=[0])


# -- pages -------------------------------------------------------------------------------------


def test_no_token_can_end_a_script_or_an_attribute(generator):
    sizes = dict(n_layers=1, d_model=16, n_ctx=4, d_head=8, n_heads=2, d_vocab=20, d_mlp=16)
    model = TransformerBridge.boot_native(sizes | dict(act_fn="gelu")).eval()
    nasty = ["</script><script>alert(1)", "'\"><img src=x onerror=alert(1)>", "&amp;", "a"]
    view = attention_view(model, torch.randint(20, (1, 4), generator=generator), labels=nasty)
    page = Viewers(view.html)
    assert page.found[0][1]["tokens"] == nasty
    assert len(page.pictures) == 1
    assert "onerror" not in page.pictures[0]
    assert "</script" not in view.html


def test_a_page_carries_the_scripts_once_and_whole(tmp_path):
    views = beside([attention_view(KNOWN, prompts()), attention_view(KNOWN, prompts(seed=1))])
    page = views.save(tmp_path / "page.html").read_text()
    (packed,) = re.findall(r'class="hoptrace-bundle">([^<]+)<', page)
    scripts = gzip.decompress(base64.b64decode(packed))
    assert scripts == (files("circuitsvis") / "dist" / "cdn" / "iife.js").read_bytes()
    assert "http" not in page.replace("http-equiv", "")
    assert len(Viewers(page).found) == 6


def test_a_page_on_which_nothing_is_drawn_carries_no_scripts(tmp_path):
    page = View("<p>words</p>", "a <title>").save(tmp_path / "page.html").read_text()
    assert "<script" not in page
    assert "<title>a &lt;title&gt;</title>" in page


def test_the_scripts_are_the_same_on_every_page():
    assert bundle_html() == bundle_html()
    assert viewer_html("AttentionPattern", {"a": 1}, picture=b"", words="w").count("'") == 2


# -- one prompt, patched -----------------------------------------------------------------------


def test_effects_are_where_the_known_mechanism_has_the_value(generator):
    pairs = TASK.counterfactual(TASK.sample(8, generator), 1, generator)
    effects = residual_effects(KNOWN, pairs)
    assert effects.shape == (4, TASK.length, len(pairs.clean))
    start, answer = TASK.start_position, TASK.answer_position
    places = [None, start, answer, answer]
    for layer, place in enumerate(places):
        for row in range(len(pairs.clean)):
            entry = TASK.positions["z1"].start + int(pairs.clean.chain[row, 0])
            expected = torch.zeros(TASK.length)
            expected[entry if place is None else place] = 1.0
            torch.testing.assert_close(
                effects[layer, :, row], expected.to(effects), atol=1e-4, rtol=0
            )


def test_the_page_says_where_the_value_is(generator):
    pairs = TASK.counterfactual(TASK.sample(8, generator), 1, generator)
    html = effect_view(KNOWN, pairs, row=-1).html
    entry = TASK.positions["z1"].start + int(pairs.clean.chain[-1, 0])
    label = TASK.token_label(entry, int(pairs.clean.tokens[-1, entry])).replace(">", "&gt;")
    assert f"embedding: most at {label} (1.00)" in html
    assert f"after layer 1: most at z0 = {int(pairs.clean.chain[-1, 0])} (1.00)" in html
    with pytest.raises(ValueError, match="row 99"):
        effect_view(KNOWN, pairs, row=99)


# -- hop maps and circuits ---------------------------------------------------------------------


def test_the_hop_map_of_a_known_mechanism_is_known_exactly():
    found = hop_map(KNOWN, TASK, pairs=128)
    start, answer = TASK.start_position, TASK.answer_position
    assert [found.carried(layer, start) for layer in range(4)] == [0, 1, None, None]
    assert [found.carried(layer, answer) for layer in range(4)] == [None, None, 1, 2]
    torch.testing.assert_close(
        found.visited(1), torch.tensor([[0.0] * 4, [1.0, 0, 0, 0], [0.0] * 4]).double()
    )
    torch.testing.assert_close(
        found.visited(2), torch.tensor([[0.0] * 4, [0.0] * 4, [1.0, 1, 1, 0]]).double()
    )
    assert found.pairs[start] == found.pairs[answer] == 128
    for role in ("z1", "z2"):
        assert found.pairs[TASK.positions[role]].sum() == 128
    assert (
        "i_1 is in the embedding at the entry of z_1; after layer 1 at start; after layer 2 at "
        "answer." in describe_hop_map(found)
    )
    with pytest.raises(ValueError, match="z_0"):
        found.visited(0)


@pytest.mark.parametrize("mechanism", ["early-linear", "full"])
def test_the_circuit_of_a_known_mechanism_is_known_exactly(mechanism):
    model = hand_set_model(TASK, mechanism)
    found = circuit(model, TASK, chains=4, prompts=4)
    moved = {
        (edge.sender, edge.receiver): (edge.hop, round(edge.weight, 3))
        for edge in found.moved().values()
    }
    z1, z2 = Node(0, "embedding", "z1"), Node(0, "embedding", "z2")
    z0 = Node(0, "embedding", "start")
    last, logits = Node(3, "mixer", "answer"), Node(4, "logits", "answer")
    middle = Node(2, "mixer", "answer")
    common = {(z2, last): (2, 1.0), (middle, last): (1, 1.0), (last, logits): (2, 1.0)}
    if mechanism == "early-linear":  # looked up at the start, then carried
        first = Node(1, "mixer", "start")
        special = {(z0, first): (0, 1.0), (z1, first): (1, 1.0), (first, middle): (1, 1.0)}
    else:  # carried first, then looked up at the answer
        first = Node(1, "mixer", "answer")
        special = {(z0, first): (0, 1.0), (first, middle): (0, 1.0), (z1, middle): (1, 1.0)}
    assert moved == common | special
    frame = found.to_frame()
    assert len(frame) == len(found.edges)
    assert (frame["low"] <= frame["weight"] + 1e-6).all()


def test_a_path_is_named_after_the_last_hop_that_is_worth_about_as_much():
    a, b = Node(1, "mixer", "start"), Node(2, "mixer", "answer")

    def named(*weights):
        edges = [Edge(a, b, hop, weight, weight, weight) for hop, weight in enumerate(weights)]
        edge = Circuit(("full",), ("answer",), tuple(edges), {}, 0.1, 1, 1).moved()[a, b]
        return edge.hop, edge.weight

    assert named(1.0, 1.0) == (1, 1.0)  # i_1 is on it, and i_0 changes i_1
    assert named(1.03, 0.23) == (0, 1.03)  # i_0 is on it, and a little of i_1
    assert named(0.5, 0.9, 0.8) == (2, 0.8)


def test_chains_of_which_no_change_shows_are_drawn_anew():
    task = CompositionTask(start_domain=2, branching=(2,))
    model = HookedStack(ModelConfig(task=task, schedule=("full", "full"), d_model=16))
    assert circuit(model, task, chains=6, prompts=1).chains == 6


def test_a_circuit_needs_prompts():
    with pytest.raises(ValueError, match="at least one"):
        circuit(KNOWN, TASK, chains=0)


def test_pictures_are_not_blank_and_show_themselves():
    from io import BytesIO

    from matplotlib.image import imread

    for figure in (
        hop_map_figure(hop_map(KNOWN, TASK, pairs=64)),
        circuit_figure(circuit(KNOWN, TASK, chains=2, prompts=2)),
    ):
        seen = imread(BytesIO(to_png(figure)))[..., :3]
        blue = np.abs(seen - np.array([11, 92, 173]) / 255).max(-1) < 0.05
        assert blue.sum() > 200  # not the axes alone: their lines and words are grey
        assert figure._repr_png_().startswith(b"\x89PNG")
