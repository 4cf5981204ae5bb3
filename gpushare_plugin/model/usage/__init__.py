"""Who holds and who uses which GPU, and who uses more than it holds."""
