"""Who is calling, and what they may do: API keys, JWTs, and the gate that every request and session passes."""
