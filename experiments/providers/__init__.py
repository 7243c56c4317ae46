"""The competitors of a benchmark, one file a family; `registry` knows them by name."""
