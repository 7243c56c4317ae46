"""One module a stem: `make(measurements)` returns the floats of its tables."""
