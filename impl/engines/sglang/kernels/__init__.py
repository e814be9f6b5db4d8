"""SGLang's kernels that write, copy, map and allocate KV."""
