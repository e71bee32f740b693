"""How lists of operations are captured of software that runs: cut in parts, written in symbols, held against runs."""
