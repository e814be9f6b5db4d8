"""Faults of radix_cache."""
