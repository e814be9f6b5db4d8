"""Faults of kv_scheduler."""
