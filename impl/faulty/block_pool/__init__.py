"""Faults of block_pool."""
