"""What software runs, as it was read off the software: lists of operations of PyTorch, and how long they take."""
