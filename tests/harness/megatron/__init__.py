"""megatron-core on CPU and gloo, and the programs that the tests run as its ranks."""
