"""How is a question answered? Plans, estimates, comparisons, sizes, and what is told of them."""
