"""What does every block of a layer do? One list of operations a block, one module a kind of block."""
