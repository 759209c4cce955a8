"""A family's row as JSON, for the record of a pruned folder, and as Python source, to be contributed.

Folders come from strangers: `from_json` accepts known fields, dotted names, small integers and booleans only.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any

from kprune.errors import BadCheckpoint, UnsupportedModel
from kprune.models.family import CONFIG_COUNTED, COUNTED, INPUTS, Block, Family

KINDS = ("attention", "ffn")
RESOLVED = ("requires", "otherwise", "real_checkpoint")
"""Fields that are not stored: they choose among rows, or say what was tried."""
MOST_UNITS, MOST_VALUES, LONGEST_PATH = 10**6, 16, 200

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_PATH = re.compile(r"(?:[A-Za-z][A-Za-z0-9_]*|\d{1,4})(?:\.(?:[A-Za-z][A-Za-z0-9_]*|\d{1,4}))*")
_PHRASE = re.compile(r"[A-Za-z0-9 ,/-]{1,100}")

Check = Callable[[Any], bool]


def to_json(family: Family) -> dict[str, Any]:
    """The fields of a row that differ from their defaults; raises for a row with a function."""
    return _object(family, skipped=RESOLVED)


def _object(row: Family | Block, skipped: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        name: {kind: _object(block) for kind, block in value.items()} if name == "blocks" else _plain(value)
        for name, value in _changed(row, skipped).items()
    }


def _changed(row: Family | Block, skipped: tuple[str, ...] = ()) -> dict[str, Any]:
    """Fields without a default, and those with another value."""
    values = {}
    for field in fields(row):
        value = getattr(row, field.name)
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        if field.name not in skipped and value != default:
            if callable(value):
                raise UnsupportedModel(f"{field.name} of the row is a function, which cannot be stored; use a name.")
            values[field.name] = value
    return values


def _plain(value: Any) -> Any:
    """Tuples as lists, as JSON has them."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, tuple) else value


def from_json(data: Any) -> Family:
    """The row in a record, checked field by field."""
    blocks = data.get("blocks") if isinstance(data, dict) else None
    if not isinstance(blocks, dict) or list(blocks) != list(KINDS):
        raise _wrong("blocks", blocks)
    read = {kind: Block(**_fields(block, BLOCK_CHECKS, Block, f"blocks.{kind}.")) for kind, block in blocks.items()}
    rest = {name: value for name, value in data.items() if name != "blocks"}
    return Family(blocks=read, **_fields(rest, FAMILY_CHECKS, Family, ""))


def _fields(data: Any, checks: dict[str, Check], row: type[Family] | type[Block], where: str) -> dict[str, Any]:
    """The fields of one object, with lists as tuples; raises for an unknown, wrong or missing one."""
    if not isinstance(data, dict):
        raise _wrong(where.rstrip("."), data)
    for name, value in data.items():
        if name not in checks or not checks[name](value):
            raise _wrong(f"{where}{name}", value)
    for field in fields(row):
        is_needed = field.default is MISSING and field.default_factory is MISSING
        if is_needed and field.name not in data and field.name != "blocks":
            raise _wrong(f"{where}{field.name}", None)
    return {name: _frozen(value) for name, value in data.items()}


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _frozen(part) for key, part in value.items()}
    return tuple(_frozen(part) for part in value) if isinstance(value, list) else value


def _wrong(name: str, value: Any) -> BadCheckpoint:
    return BadCheckpoint(
        f"the record's 'family' has {name!r:.80} = {repr(value)[:80]}, which is no field of a row; restore the folder."
    )


def _is_bool(value: Any) -> bool:
    return type(value) is bool


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST_PATH and _NAME.fullmatch(value) is not None


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST_PATH and _PATH.fullmatch(value) is not None


def _is_phrase(value: Any) -> bool:
    return isinstance(value, str) and _PHRASE.fullmatch(value) is not None


def _is_count(most: int, least: int = 1) -> Check:
    return lambda value: type(value) is int and least <= value <= most  # bool is a subclass of int


def _either(*checks: Check) -> Check:
    return lambda value: any(check(value) for check in checks)


def _or_none(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _list_of(check: Check, most: int = MOST_VALUES) -> Check:
    return lambda value: isinstance(value, list) and len(value) <= most and all(check(part) for part in value)


def _dict_of(check: Check, most: int = MOST_VALUES) -> Check:
    return lambda value: (
        isinstance(value, dict) and len(value) <= most and all(_is_path(k) and check(v) for k, v in value.items())
    )


def _is_counted(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and _is_path(value[0]) and value[1] in COUNTED


_units = _is_count(MOST_UNITS)
BLOCK_CHECKS: dict[str, Check] = {
    "residual_input": _is_path,
    "module": _is_path,
    "producers": _dict_of(_either(_is_count(MOST_VALUES), _list_of(_either(_units, _is_path)))),
    "consumer": _is_path,
    "dense_units": _either(_is_name, _units),
    "unit_width": _list_of(_either(_is_path, _units), 2),
    "counts": _list_of(_is_counted),
    "parameters": _dict_of(_is_count(3, least=0)),
    "head_bias": _or_none(_is_name),
    "output_scale": _or_none(_is_path),
    "is_normed": _is_bool,
    "returns": _is_count(MOST_VALUES),
    "cache": _is_name,
    "config_counts": _dict_of(lambda value: value in list(CONFIG_COUNTED)),
}
FAMILY_CHECKS: dict[str, Check] = {
    "layers": _is_path,
    "mid_stream": _or_none(_is_path),
    "embeddings": _or_none(_is_path),
    "layer_returns": _is_count(MOST_VALUES),
    "causal": _is_bool,
    "has_cache": _is_bool,
    "is_parallel": _is_bool,
    "shared_bias": _or_none(_is_path),
    "inputs": lambda value: value in list(INPUTS),  # a list cannot be looked up in a dict
    "positions": _or_none(_is_name),
    "positions_follow_padding": _is_bool,
    "first_token_saving": _is_bool,
    "uncounted": _or_none(_is_phrase),
}


def as_source(family: Family, name: str) -> str:
    """A row as Python source, in the form of `models/rows_*.py`."""
    return f"{name} = {_source(family, '')}\n"


def _source(value: Any, indent: str) -> str:
    inner = indent + "    "
    if isinstance(value, Family | Block):
        lines = [f"{inner}{field}={_source(part, inner)},\n" for field, part in _changed(value).items()]
        return f"{type(value).__name__}(\n{''.join(lines)}{indent})"
    if isinstance(value, dict) and any(isinstance(part, Block) for part in value.values()):
        lines = [f"{inner}{_source(key, inner)}: {_source(part, inner)},\n" for key, part in value.items()]
        return f"{{\n{''.join(lines)}{indent}}}"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_source(key, inner)}: {_source(part, inner)}' for key, part in value.items())}}}"
    if isinstance(value, tuple):
        parts = [_source(part, inner) for part in value]
        return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
    return f'"{value}"' if isinstance(value, str) else repr(value)
