"""The HTTP API of the Rust project bpm-engine 0.2 (``/bpm-engine``), so that its worker SDK runs (docs/bpm-engine)."""
