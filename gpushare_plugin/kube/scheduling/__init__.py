"""Parts of the API for programs that take part in scheduling."""
