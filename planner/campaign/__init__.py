"""What the whole run takes: time and money, as equations that can be objectives."""
