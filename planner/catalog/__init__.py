"""What is known of hardware, software and models: data files with their sources, and their loaders."""
