"""What is deployed: new versions, deleted ones, and processes of which nothing starts for the time being."""

from __future__ import annotations

import attrs

from stellwerk.errors import Conflict, NotFound, StellwerkError
from stellwerk.instants import InstantMs
from stellwerk.ports import (
    DefinitionRow,
    DeleteDefinition,
    DeployDefinitions,
    Deployed,
    ProcessRow,
    SetProcessEnabled,
)
from stellwerk.stores.tables import Tables

__all__ = ["delete_definition", "deploy", "set_process_enabled", "split_definition_id"]

_VERSION_DIGITS_MAX = 18


def split_definition_id(definition_id: str) -> tuple[str, int] | None:
    """Key and version. None: no definition can have that id."""
    key, _, version = definition_id.rpartition(":")
    if not version.isascii() or not version.isdigit() or len(version) > _VERSION_DIGITS_MAX:
        return None
    return key, int(version)


def deploy(tables: Tables, operation: DeployDefinitions, now_ms: InstantMs) -> Deployed:
    deployed: list[DefinitionRow] = []
    unchanged: list[str] = []
    for wanted in operation.definitions:
        latest, process = tables.latest_definition(wanted.key), _process(tables, wanted.key)
        if latest is not None and latest.digest == wanted.digest:
            deployed.append(latest)
            unchanged.append(wanted.key)
            continue
        newest = max(0 if latest is None else latest.version, process.last_deleted)
        row = attrs.evolve(wanted, version=newest + 1)
        tables.insert_definition(row)
        if process.is_enabled:
            tables.replace_start_subscriptions(row.key, row, now_ms)
        deployed.append(row)
    return Deployed(tuple(deployed), tuple(unchanged))


def set_process_enabled(tables: Tables, operation: SetProcessEnabled, now_ms: InstantMs) -> bool | StellwerkError:
    process, latest = _process(tables, operation.key), tables.latest_definition(operation.key)
    if latest is None:
        return NotFound(f'no process "{operation.key}" is deployed')
    if process.is_enabled is operation.is_enabled:
        return False
    tables.put_process(attrs.evolve(process, is_enabled=operation.is_enabled))
    tables.replace_start_subscriptions(operation.key, latest if operation.is_enabled else None, now_ms)
    return True


def delete_definition(tables: Tables, operation: DeleteDefinition, now_ms: InstantMs) -> StellwerkError | None:
    definition_id = operation.definition_id
    named = split_definition_id(definition_id)
    if named is None or not tables.has_definition(definition_id):
        return NotFound(f'no definition "{definition_id}" is deployed')
    if tables.has_instances_of(definition_id):
        return Conflict(f'there are instances of "{definition_id}", whose history needs it', code="in_use")
    key, version = named
    tables.delete_definition(definition_id)
    process = _process(tables, key)
    tables.put_process(attrs.evolve(process, last_deleted=max(version, process.last_deleted)))
    if process.is_enabled:
        tables.replace_start_subscriptions(key, tables.latest_definition(key), now_ms)
    return None


def _process(tables: Tables, key: str) -> ProcessRow:
    return tables.process(key) or ProcessRow(key)
