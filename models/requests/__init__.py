"""Requests and their KV: the parts that the judges of kv_manager and kv_scheduler share."""
