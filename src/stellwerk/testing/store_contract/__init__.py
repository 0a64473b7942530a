"""The behaviour that every store of stellwerk has: a suite that a new store inherits and must pass.

    class TestMyStore(StoreContract):
        def make_store(self, clock: ManualClock) -> Store:
            return MyStore(…, clock)

Each test opens what `make_store` gives and may close and open it again. Tests named ``test_rule_…`` are after the rules
in the docs' page on consistency, tests named ``test_L…`` after the requirements on the external task's life.
"""

from stellwerk.testing.store_contract.api_keys import ApiKeyContract
from stellwerk.testing.store_contract.catalogue import CatalogueContract
from stellwerk.testing.store_contract.changesets import ChangesetContract
from stellwerk.testing.store_contract.clock import ClockContract
from stellwerk.testing.store_contract.endings import EndingContract
from stellwerk.testing.store_contract.leases import LeaseContract
from stellwerk.testing.store_contract.listing import ListingContract
from stellwerk.testing.store_contract.messages import MessageContract
from stellwerk.testing.store_contract.people import PeopleContract
from stellwerk.testing.store_contract.pruning import PruningContract
from stellwerk.testing.store_contract.reads import ReadContract
from stellwerk.testing.store_contract.sessions import SessionContract
from stellwerk.testing.store_contract.task_settings import TaskSettingContract
from stellwerk.testing.store_contract.world import DictatedLeaseClock, ManualClock, StoreWorld

__all__ = ["DictatedLeaseClock", "ManualClock", "StoreContract", "StoreWorld"]


class StoreContract(
    ChangesetContract,
    EndingContract,
    LeaseContract,
    SessionContract,
    MessageContract,
    ReadContract,
    ListingContract,
    PruningContract,
    TaskSettingContract,
    ApiKeyContract,
    CatalogueContract,
    PeopleContract,
    ClockContract,
):
    """All of it."""
