"""What does it cost? Parameters, FLOPs, memory, traffic and time; arrays in, arrays out."""
