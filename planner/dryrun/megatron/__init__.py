"""Megatron-Core's own layers on tensors without data, one pipeline rank at a time."""
