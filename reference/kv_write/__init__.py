"""The kernels that write KV: rows of new tokens into slots of a paged cache."""
