"""Where claims meet the node: what is given by claim, records of prepared claims, and their CDI files."""
