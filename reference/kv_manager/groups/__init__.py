"""Groups of a kv_manager: layers that read alike, each with block tables of its own."""
