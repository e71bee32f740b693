"""How long does a recorded step take? A fold over its list of operations; needs no PyTorch."""
