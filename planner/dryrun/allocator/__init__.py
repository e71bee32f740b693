"""What PyTorch's caching allocator takes from a device for the allocations of a training step."""
