"""One self-contained HTML page about a run: rows of the trace become shapes, these SVG, and that a document."""
