"""Megatron's front door: in-process restart for Megatron-LM and for loops of one's own on megatron-core."""
