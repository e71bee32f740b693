"""What do logs and tools print? Steps, options, memory, links and machines, read from text."""
