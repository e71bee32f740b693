"""What does cutting a model into stages cost? Stages, what they hold in flight, the step they make."""
