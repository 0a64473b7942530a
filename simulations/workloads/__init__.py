"""BPMN models, what handlers and clients do with them, and what must have come out in the end."""
