"""Faults of kv_manager."""
