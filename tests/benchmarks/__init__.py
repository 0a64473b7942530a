"""Benchmarks of the engine: ``python -m tests.benchmarks NAME`` from the checkout. See docs/performance.md."""
