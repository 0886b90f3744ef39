"""How many requests a second the HTTP API answers, beside a server that does nothing."""
