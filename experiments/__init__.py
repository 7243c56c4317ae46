"""The measurements: configuration in, one record a case out."""
