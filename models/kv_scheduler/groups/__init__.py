"""The judge of a kv_scheduler with groups."""
