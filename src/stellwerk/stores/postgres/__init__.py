"""The store on PostgreSQL: asyncio on asyncpg inside, trio outside. Needs the extra ``postgres``."""
