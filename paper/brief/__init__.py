"""What the paper itself shows, one float a module: `make(measurements, folder)`; the supplement has all the rest."""
