"""Turns a line into a request, or says which field is wrong."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_LINE_BYTES = 1 << 20
_TARGET_LIMIT = 1 << 64
_DEFAULT_LIMIT_MS = 2000
_DEFAULT_MODELS = 4
_MAX_VERIFY_TARGETS = 4096


class Refused(Exception):
    """A request that is not done. `kind` is one of the protocol's error kinds."""

    def __init__(self, kind: str, message: str, request_id: int | str | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.request_id = request_id


@dataclass(frozen=True)
class Action:
    """One branch direction to reach: by one input (`solve`) or by several (`sample`)."""

    target: int
    action: str


@dataclass(frozen=True)
class TraceRequest:
    """Which branches does this seed take, and which could it have taken?"""

    seed: Path

    @staticmethod
    def parse(fields: dict[str, Any]) -> TraceRequest:
        return TraceRequest(_path(fields, "seed"))


@dataclass(frozen=True)
class SolveRequest:
    """One seed, one replay, every action on its path."""

    seed: Path
    actions: tuple[Action, ...]
    limit_ms: int
    out_dir: Path
    max_models: int

    @staticmethod
    def parse(fields: dict[str, Any], actions: int, models: int, limit_ms: int) -> SolveRequest:
        """Checks `fields` against the worker's limits."""
        listed = fields.get("actions")
        if not isinstance(listed, list) or not 1 <= len(listed) <= actions:
            raise Refused("bad-request", f"actions: not a list of 1 to {actions} actions")
        parsed = tuple(_action(item, f"actions[{index}]") for index, item in enumerate(listed))
        if len({action.target for action in parsed}) != len(parsed):
            raise Refused("bad-request", "actions: a target is named twice")
        out_dir = _path(fields, "out_dir")
        if not out_dir.is_dir():
            raise Refused("bad-request", f"out_dir: {out_dir} is not a directory")
        return SolveRequest(
            _path(fields, "seed"),
            parsed,
            _number(fields, "limit_ms", _DEFAULT_LIMIT_MS, limit_ms),
            out_dir,
            _number(fields, "max_models", _DEFAULT_MODELS, models),
        )


@dataclass(frozen=True)
class VerifyRequest:
    """Which of these targets does this input take?"""

    input: Path
    targets: tuple[int, ...]

    @staticmethod
    def parse(fields: dict[str, Any]) -> VerifyRequest:
        listed = fields.get("targets")
        if not isinstance(listed, list) or len(listed) > _MAX_VERIFY_TARGETS:
            raise Refused("bad-request", f"targets: not a list of up to {_MAX_VERIFY_TARGETS}")
        targets = tuple(_target(item, f"targets[{index}]") for index, item in enumerate(listed))
        return VerifyRequest(_path(fields, "input"), targets)


def parse_request(line: bytes) -> tuple[int | str, str, dict[str, Any]]:
    """The id, operation and fields of a line. Raises `Refused` with the id where it has one."""
    if len(line) > MAX_LINE_BYTES:
        raise Refused("bad-request", f"line longer than {MAX_LINE_BYTES} bytes")
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Refused("bad-request", f"not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise Refused("bad-request", "not a JSON object")
    request_id = fields.get("id")
    if isinstance(request_id, bool) or not isinstance(request_id, (int, str)):
        raise Refused("bad-request", "id: not an integer or a string")
    op = fields.get("op")
    if not isinstance(op, str):
        raise Refused("bad-request", "op: not a string", request_id)
    return request_id, op, fields


def _action(item: object, where: str) -> Action:
    if not isinstance(item, dict):
        raise Refused("bad-request", f"{where}: not an object")
    action = item.get("action")
    if action not in ("solve", "sample"):
        raise Refused("bad-request", f"{where}.action: not solve or sample")
    return Action(_target(item.get("target"), f"{where}.target"), action)


def _target(value: object, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < _TARGET_LIMIT:
        raise Refused("bad-request", f"{where}: not a positive 64-bit integer")
    return value


def _number(fields: dict[str, Any], name: str, default: int, most: int) -> int:
    value = fields.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise Refused("bad-request", f"{name}: not an integer from 1 to {most}")
    return value


def _path(fields: dict[str, Any], name: str) -> Path:
    value = fields.get(name)
    if not isinstance(value, str) or not value or "\0" in value:
        raise Refused("bad-request", f"{name}: not a path")
    return Path(value)
