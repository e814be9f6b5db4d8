"""Faults of paged_cache."""
