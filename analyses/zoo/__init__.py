"""Trained models that come with hoptrace: each a run's config, weights and result.

    model = load_trained("early-linear-L2")

Their numbers are in `result.json` beside the weights: recipe, seed, accuracy and trace.
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from analyses.runs import RESULT_FILE, RunResult, read_result
from architectures import HookedStack, load_model

HOME = Path(__file__).parent


class TrainedModel(BaseModel):
    """A model of the zoo, in a line.

    Attributes:
        name: what `load_trained` takes.
        hops: L, the number of functions.
        schedule: its layers.
        accuracy: exact accuracy on held-out prompts.
        task: m, and n_1 … n_{L-1}.
        seed, steps: of its training.
        causal_hop: at the answer position, after each layer.
        kilobytes: of its weights.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    hops: int
    schedule: tuple[str, ...]
    accuracy: float
    task: str
    seed: int
    steps: int
    causal_hop: tuple[int, ...]
    kilobytes: int


def load_trained(name: str) -> HookedStack:
    """The trained model of that name.

    Raises:
        ValueError: no model has the name; the nearest ones are named.
    """
    return load_model(trained_directory(name))


def trained_result(name: str) -> RunResult:
    """How it was trained, and its trace.

    Raises:
        ValueError: no model has the name.
    """
    return read_result(trained_directory(name))


def trained_names() -> list[str]:
    """What `load_trained` takes, in alphabetical order."""
    return sorted(path.parent.name for path in HOME.glob(f"*/{RESULT_FILE}"))


def trained_models() -> list[TrainedModel]:
    """All models of the zoo, by number of hops and then by name."""
    models = []
    for name in trained_names():
        result = trained_result(name)
        config = result.trace.config
        branching = ", ".join(map(str, config.task.branching))
        models.append(
            TrainedModel(
                name=name,
                hops=config.task.hops,
                schedule=config.schedule,
                accuracy=result.accuracy,
                task=f"m = {config.task.start_domain}, n = {branching}",
                seed=result.recipe.seed,
                steps=result.progress.step,
                causal_hop=tuple(layer.causal_hop for layer in result.trace.layers[1:]),
                kilobytes=(HOME / name / "model.safetensors").stat().st_size // 1024,
            )
        )
    return sorted(models, key=lambda model: (model.hops, model.name))


def trained_directory(name: str) -> Path:
    """Where its files are.

    Raises:
        ValueError: no model has the name.
    """
    if name not in trained_names():
        near = get_close_matches(name, trained_names(), 3, 0.3) or trained_names()
        raise ValueError(
            f"no trained model is called {name!r}; there is {', '.join(near)} "
            "(`hoptrace models` lists all)"
        )
    return HOME / name
