"""What is the machine? Accelerators, links, clusters and their files."""
