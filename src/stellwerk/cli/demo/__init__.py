"""``stellwerk demo``: an order saga under fire, checked against what the workers wrote down themselves.

The demo (`run.run_demo`) starts an engine and several workers as processes of their own, lets orders run through
`order-saga.bpmn`, kills a worker and the engine with SIGKILL on the way, and then compares what happened with what had
to happen.
"""
