"""What is saved is what is loaded; what is not whole, or not ours, is refused in one line."""

import json
import os
from pathlib import Path

import pytest
import torch

from architectures import CheckpointError, HookedStack, ModelConfig, load_model, save_model
from architectures.checkpoints import write_atomically
from composition import CompositionTask

CONFIG = ModelConfig(
    task=CompositionTask(start_domain=3, branching=(2,)), schedule=("full", "deltanet"), d_model=16
)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return save_model(HookedStack(CONFIG, seed=4), tmp_path / "model")


def test_round_trip(saved):
    model, loaded = HookedStack(CONFIG, seed=4), load_model(saved)
    assert loaded.config == CONFIG
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[name])
    assert sorted(path.name for path in saved.iterdir()) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.99])
@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_file_cut_short_is_refused(saved, name, share):
    path = saved / name
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(CheckpointError, match=f"{name} is not a whole") as caught:
        load_model(saved)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named(saved, name):
    (saved / name).unlink()
    with pytest.raises(CheckpointError, match=f"{name} is missing"):
        load_model(saved)


def test_weights_of_another_model_are_refused(saved):
    wider = CONFIG.model_copy(update={"d_model": 32})
    (saved / "config.json").write_text(wider.model_dump_json())
    with pytest.raises(CheckpointError, match=r"has shape .* there"):
        load_model(saved)
    deeper = CONFIG.model_copy(update={"schedule": ("full", "deltanet", "full")})
    (saved / "config.json").write_text(deeper.model_dump_json())
    with pytest.raises(CheckpointError, match="only the model has"):
        load_model(saved)


def test_an_unknown_field_is_refused(saved):
    config = json.loads((saved / "config.json").read_text()) | {"n_experts": 8}
    (saved / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="n_experts: Extra inputs"):
        load_model(saved)


def test_a_pickle_is_never_executed(saved, tmp_path):
    class Bomb:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path}/exploded",)

    torch.save(Bomb(), saved / "model.safetensors")
    with pytest.raises(CheckpointError):
        load_model(saved)
    assert not (tmp_path / "exploded").exists()


def test_others_may_read_what_is_written(tmp_path):
    write_atomically(tmp_path / "ours", b"")
    (tmp_path / "plain").write_bytes(b"")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def full_disk(descriptor):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="no space"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
