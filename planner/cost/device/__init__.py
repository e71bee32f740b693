"""How long does one device take? Its products, attention, passes over memory and launches."""
