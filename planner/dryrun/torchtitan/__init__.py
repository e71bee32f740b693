"""torchtitan's own models on tensors without data, one pipeline rank at a time."""
