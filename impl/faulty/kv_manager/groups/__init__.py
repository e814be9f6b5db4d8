"""Faults of kv_manager with groups."""
