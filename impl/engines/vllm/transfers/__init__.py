"""vLLM with KV on its way: connectors, offloading, and a peer instance."""
