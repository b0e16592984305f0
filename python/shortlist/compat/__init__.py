"""Stand-ins for the calls of other libraries."""
