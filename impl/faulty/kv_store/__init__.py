"""Faults of kv_store."""
