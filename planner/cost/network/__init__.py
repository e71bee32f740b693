"""How long does communication take? Links, algorithms, messages and what runs beside it."""
