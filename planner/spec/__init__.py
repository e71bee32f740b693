"""What is given: model, cluster, job, stack, and one candidate configuration."""
