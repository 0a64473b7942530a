"""What the elements of BPMN do, each on a `Step`. A module imports those above it in this list, never the other way.

``values`` (expressions, mappings, variables) · ``waiting`` (timers, subscriptions) · ``cancellation`` · ``flows``
(leaving a node) · ``gateways`` · ``incidents`` · ``compensation`` · ``errors`` · ``activities`` (start and finish) ·
``tasks`` · ``scopes`` · ``events``
"""
