"""How much memory does a rank need? What is kept between steps, passes and moments."""
