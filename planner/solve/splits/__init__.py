"""Which layers does every stage hold, and which are recomputed? CP-SAT and the bounds around it."""
