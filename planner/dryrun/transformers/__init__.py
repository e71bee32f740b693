"""Models of Hugging Face and their training step on tensors without data."""
