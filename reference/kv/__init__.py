"""KV memory and its sizes, for every contract that keeps KV."""
