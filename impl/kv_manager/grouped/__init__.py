"""kv_manager in blocks with several groups."""
