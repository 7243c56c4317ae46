"""The paper: stored results in, figures, tables, numbers and a PDF out."""
