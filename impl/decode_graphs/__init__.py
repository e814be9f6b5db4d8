"""Decode steps as captured graphs."""

from kvlockstep.impl.decode_graphs.graphs import DecodeGraphs

__all__ = ["DecodeGraphs"]
