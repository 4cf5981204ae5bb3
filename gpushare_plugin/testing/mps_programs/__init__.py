"""What `testing.mps` puts on PATH; with few imports, because tests start these programs hundreds of times."""
