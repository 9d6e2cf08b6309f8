"""The part of Apex without which Megatron-LM does not train sequence-parallel where Transformer Engine is missing."""
