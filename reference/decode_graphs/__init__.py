"""Decode steps as captured graphs."""

from kvlockstep.reference.decode_graphs.graphs import DecodeGraphs

__all__ = ["DecodeGraphs"]
