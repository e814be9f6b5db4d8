"""The judge of a kv_manager with groups."""
