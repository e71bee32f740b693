"""How an answer is read: facts computed from a plan, apart from how they are drawn."""
