"""Targets: their names, their import, and the check that they fit their contract."""

from kvlockstep.targets.registry import Target, resolve

__all__ = ["Target", "resolve"]
