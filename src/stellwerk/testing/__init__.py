"""What tests of programs around stellwerk can build on.

`StoreContract` is the suite that every store must pass: a new store inherits it (`stellwerk.testing.store_contract`).
`ManualClock` is time that stands still until a test moves it, `StoreWorld` a store with a few helpers to talk to it.
Needs pytest (extra ``test``).

For tests of your own processes and workers run a whole engine in memory: ``AppConfig(db=MEMORY, port=0)`` with
``serve_engine`` of `stellwerk.app`.
"""

from stellwerk.testing.store_contract import ManualClock, StoreContract, StoreWorld

__all__ = ["ManualClock", "StoreContract", "StoreWorld"]
