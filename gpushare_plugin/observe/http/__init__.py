"""Serves HTTP, safe from any client with access to the port."""
