"""Shared by all tests: one thread, so that numbers repeat, and a generator."""

import os

# Processes that tests start are on one thread too: two at a time on two cores, more only wait.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch

from analyses import hand_set_mechanisms

torch.set_num_threads(1)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


TASKS = {f"L={hops}": task for hops, task in hand_set_mechanisms.TASKS.items()}
"""The task itself at each length that hand-set models are proved on."""
