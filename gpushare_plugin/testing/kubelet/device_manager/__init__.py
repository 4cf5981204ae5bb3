"""The device manager: which devices there are, who answers for them, and which container was given which."""
