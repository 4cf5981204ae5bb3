"""One module per measured thing; each `measure` starts what it needs, and ends it."""
