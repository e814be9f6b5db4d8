"""Faults of kv_tier, a module for each part of the work of a tier."""
