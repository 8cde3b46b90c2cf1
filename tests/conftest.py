"""Shared by all tests: one thread, so that numbers repeat, and a generator."""

import pytest
import torch

from composition import CompositionTask

torch.set_num_threads(1)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


TASKS = {
    "L=2": CompositionTask(start_domain=4, branching=(8,)),
    "L=3": CompositionTask(start_domain=3, branching=(3, 2)),
    "L=4": CompositionTask(start_domain=3, branching=(2, 2, 2)),
}
"""The task itself at each length that hand-set models are proved on."""
