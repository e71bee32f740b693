"""How good are the predictions? Published runs as problems, predictions beside measurements."""
