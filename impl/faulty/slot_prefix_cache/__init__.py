"""Faults of slot_prefix_cache."""
