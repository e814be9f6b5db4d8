"""Faults of kv_index."""
