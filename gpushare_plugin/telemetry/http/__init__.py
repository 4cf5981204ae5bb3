"""Serving HTTP, safe from any client that can reach the port."""
