"""The objects of an API server by their places: kept, versioned, selected, and owned field by field."""
