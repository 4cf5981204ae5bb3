"""The certificates that the scheduler extender makes itself."""
