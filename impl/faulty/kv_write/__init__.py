"""Faults of kv_write."""
