"""Placeholder."""


def switch_for(adapter: str, version: str) -> str:
    """."""
    return ""
