"""Laws of kv_write, and the rows that are written."""
