"""What a real training step does to one device, run on tensors without data."""
