"""One self-contained HTML page per result: no network, no build step."""
