"""The laws of paged_cache."""
