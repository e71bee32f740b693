"""What does a row of published runs say? Cells, recipes, the stack and the configuration it ran."""
