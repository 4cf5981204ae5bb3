"""One module for each decider: an input of plain JSON in, a verdict of plain JSON out; they alone import internals."""
