-- Keys by which callers are known. Of the key itself only the digest of its secret is kept; `identity` is JSON.

CREATE TABLE api_keys (
    key_id TEXT PRIMARY KEY,
    secret_digest TEXT NOT NULL,
    identity TEXT NOT NULL,
    created_at_ms INTEGER NOT NULL,
    revoked_at_ms INTEGER
) WITHOUT ROWID;
