"""The parts of a node that `gpushare doctor` looks at, a module each: what is read, and how that is judged."""
