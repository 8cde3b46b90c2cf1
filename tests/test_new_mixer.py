"""The mixer that docs/new_mixer.md adds works as the page says: exact, streaming, in a stack."""

import re
from pathlib import Path

import torch

from architectures import HookedStack, ModelConfig, effective_attention
from architectures.mixers import MIXERS, MixerSizes, RecurrentLayer
from architectures.past import Past
from composition import CompositionTask, theory

PAGE = Path(__file__).parents[1] / "docs" / "new_mixer.md"


def the_pages_mixer():
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.S)
    names: dict = {}
    exec(compile(code, PAGE.name, "exec"), names)
    return names["HGRN2"]


def test_it_is_its_equation(generator):
    layer = RecurrentLayer(the_pages_mixer(), MixerSizes(12, 2, 3, 5))
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    x = torch.randn(1, 40, 12, generator=generator)
    mixer = layer.mixer
    with torch.no_grad():
        expected = torch.zeros(40, 12)
        for h in range(2):
            S = torch.zeros(3, 5)
            for t in range(40):
                f = torch.sigmoid(x[0, t] @ mixer.W_F[h])
                S = f[:, None] * S + torch.outer(1 - f, x[0, t] @ mixer.W_V[h])
                out = S.T @ torch.nn.functional.silu(x[0, t] @ mixer.W_Q[h]) / 3**0.5
                out = out / (out.square().mean() + 1e-5).sqrt() * mixer.scale_out
                expected[t] += out @ layer.W_O[h]
        torch.testing.assert_close(layer(x, Past())[0], expected, atol=1e-5, rtol=1e-4)


def test_a_row_and_a_name_are_all_it_takes(monkeypatch, generator):
    monkeypatch.setitem(MIXERS, "hgrn2", the_pages_mixer())
    monkeypatch.setattr(theory, "LINEAR_KINDS", (*theory.LINEAR_KINDS, "hgrn2"))
    task = CompositionTask(start_domain=3, branching=(4,))
    model = HookedStack(ModelConfig(task=task, schedule=("full", "hgrn2"), d_model=16)).eval()
    tokens = task.sample(2, generator).tokens
    with torch.no_grad():
        whole = model(tokens)
        first, state = model(tokens[:, :7], return_state=True)
        rest = model(tokens[:, 7:], state=state)
    torch.testing.assert_close(torch.cat([first, rest], 1), whole, atol=1e-5, rtol=1e-5)
    assert effective_attention(model, tokens, 1).shape == (2, 1, 17, 17)
    assert model.open_states(1, [4]) == ["blocks.1.linear_attn.hook_state.4"]
