"""In which order does a pipeline run its micro-batches, how long does that take, how many are in flight?"""
