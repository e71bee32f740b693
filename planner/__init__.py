"""planner: the fastest way to train a model on a cluster, with proof, reasons and error bars."""

__version__ = "0.1.0"
