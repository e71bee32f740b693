"""Which messages does a training step send, how long does each take, and what of it does nothing hide?"""
