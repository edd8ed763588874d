"""Studies: data, a trained network, and every method compared on the same target."""
