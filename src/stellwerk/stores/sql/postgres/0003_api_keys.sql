-- readable from 2
--
-- Keys by which callers are known. Of the key itself only the digest of its secret is kept; `identity` is JSON.

CREATE TABLE stellwerk.api_keys (
    key_id text COLLATE "C" PRIMARY KEY,
    secret_digest text COLLATE "C" NOT NULL,
    identity text NOT NULL,
    created_at_ms bigint NOT NULL,
    revoked_at_ms bigint
);
