"""Why is a run slow, why did it run out of memory? Causes, and how well each explains what was measured."""
