"""The laws of kv_manager."""
