"""Engines that pin their host memory, on machines where nothing can be pinned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch


@contextmanager
def pageable() -> Iterator[None]:
    """Makes tensors ordinary that should be pinned, until the context ends: pinning takes a GPU."""
    with ExitStack() as stack:
        for name in ("empty", "arange", "tensor"):
            stack.enter_context(patch.object(torch, name, _unpinned(getattr(torch, name))))
        stack.enter_context(patch.object(torch.Tensor, "pin_memory", lambda tensor: tensor))
        yield


def _unpinned(create: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def created(*args: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        return create(*args, **options)

    return created
