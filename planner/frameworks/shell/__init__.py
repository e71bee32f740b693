"""What does a launch script pass? Bash, read as far as it is plain."""
