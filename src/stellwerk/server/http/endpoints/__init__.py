"""The endpoints of the HTTP API, one module for each area."""
