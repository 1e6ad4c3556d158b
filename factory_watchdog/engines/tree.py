"""JSON of a stranger: looked into without trusting that anything is there, or is what it should be."""

from __future__ import annotations

import json


def parsed(body: bytes) -> object:
    """The JSON value in the body, None where there is none."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def at(tree: object, *path: str | int) -> object:
    """What stands at the path of keys and list positions, None where the tree does not go there."""
    for step in path:
        if isinstance(tree, dict):
            tree = tree.get(step)
        elif isinstance(tree, list) and isinstance(step, int) and step < len(tree):
            tree = tree[step]
        else:
            return None
    return tree


def entries(tree: object, key: str) -> list[object]:
    """The list at a key, empty where there is none."""
    found = at(tree, key)
    return found if isinstance(found, list) else []
