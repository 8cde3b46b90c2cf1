"""A directory that two processes write into at once keeps neither's results: one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from architectures import CheckpointError

LOCK_FILE = ".lock"

PATIENCE = 5.0
"""Seconds to wait: the processes of a sweep that was killed need a moment to notice."""


@contextmanager
def alone_in(directory: Path) -> Iterator[None]:
    """Keep other processes out of the directory for the time of the block.

    The system lets go of the lock when its process ends, however it ends.

    Raises:
        CheckpointError: another process has it.
    """
    directory.mkdir(parents=True, exist_ok=True)
    lock = FileLock(directory / LOCK_FILE)
    try:
        lock.acquire(timeout=PATIENCE)
    except Timeout:
        raise CheckpointError(
            f"another process is at work in {directory}; wait for it, or use another directory"
        ) from None
    try:
        yield
    finally:
        lock.release()
