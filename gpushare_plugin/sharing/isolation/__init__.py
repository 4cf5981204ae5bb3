"""What holds containers to their share: one module an isolation."""
