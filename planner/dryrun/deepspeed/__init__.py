"""DeepSpeed's own engine on tensors without data."""
