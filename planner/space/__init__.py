"""What is legal: the axes, their values, and the rules that no framework can break."""
