"""How rows of a run change state: fenced compare-and-sets, one file per kind of row."""
