"""What does a layer without plain attention do between its projections? One module a kind."""
