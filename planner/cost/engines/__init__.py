"""What do the engines that hold weights, gradients and optimizer states do to memory and time? A module a kind."""
