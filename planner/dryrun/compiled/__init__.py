"""What does a step that torch.compile compiled ask of a device? PyTorch's own compiler, on a machine without one."""
