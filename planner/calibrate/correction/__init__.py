"""What do measurements change? Factors of a stack, no further than they agree."""
