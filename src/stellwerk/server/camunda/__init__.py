"""The HTTP API of Camunda 7 and Operaton (``/engine-rest``), as far as their clients need it (docs/camunda)."""
