"""stellwerk: a BPMN process engine whose heart is external tasks."""
