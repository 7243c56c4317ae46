"""One module a stem: `make(measurements, folder)` saves PDFs and returns the floats that show them."""
