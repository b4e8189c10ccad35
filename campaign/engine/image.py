"""Reads the program image: a static 64-bit ELF without a loader or a system below it."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

_ELF64_LITTLE = b"\x7fELF\x02\x01"
_ET_EXEC = 2
_MACHINE_X86_64 = 62
_PT_LOAD = 1
_PT_NOTE = 4
_SHT_SYMTAB = 2
_STT_FUNC = 2
_NOTE_GNU_BUILD_ID = 3
# A target integer keeps each address in 32 bits, and stays below 2**63.
_ADDRESS_LIMIT = 1 << 31


class ImageError(Exception):
    """The file is not an image this engine can replay."""


@dataclass(frozen=True)
class Segment:
    """One loadable part: `data` at `address`, zeros up to `size` bytes."""

    address: int
    data: bytes
    size: int


@dataclass(frozen=True)
class Function:
    """The bytes `start <= pc < end` of one function."""

    start: int
    end: int


@dataclass(frozen=True)
class Image:
    """A program as the replays see it. Target integers mean something only under `build_id`."""

    entry: int
    build_id: str
    segments: tuple[Segment, ...]
    functions: dict[str, Function]

    @staticmethod
    def load(path: Path) -> Image:
        """Reads the image at `path`; raises `ImageError` or `OSError`."""
        data = path.read_bytes()
        try:
            return _parse(data)
        except (struct.error, IndexError, ValueError) as error:
            raise ImageError(f"{path}: damaged ELF: {error}") from error
        except ImageError as error:
            raise ImageError(f"{path}: {error}") from error

    def code(self, address: int, length: int) -> bytes:
        """Up to `length` bytes of the image at `address`; empty outside every segment."""
        for segment in self.segments:
            offset = address - segment.address
            if 0 <= offset < len(segment.data):
                return segment.data[offset : offset + length]
        return b""


def _parse(data: bytes) -> Image:
    if data[:6] != _ELF64_LITTLE:
        raise ImageError("not a 64-bit little-endian ELF file")
    kind, machine = struct.unpack_from("<HH", data, 16)
    if machine != _MACHINE_X86_64:
        raise ImageError(f"built for machine {machine}, not x86-64")
    if kind != _ET_EXEC:
        raise ImageError("not linked at fixed addresses, so it needs a loader")
    entry, program_at, section_at = struct.unpack_from("<QQQ", data, 24)
    program_size, program_count, section_size, section_count = struct.unpack_from("<HHHH", data, 54)
    segments: list[Segment] = []
    build_id = ""
    for index in range(program_count):
        kind, _, offset, address, _, file_size, size, _ = struct.unpack_from(
            "<IIQQQQQQ", data, program_at + index * program_size
        )
        content = data[offset : offset + file_size]
        if len(content) != file_size:
            raise ImageError("a segment ends past the file")
        if kind == _PT_LOAD:
            if address + size >= _ADDRESS_LIMIT:
                raise ImageError("a segment lies above 2 GiB, where target integers have no room")
            segments.append(Segment(address, content, size))
        elif kind == _PT_NOTE:
            build_id = build_id or _build_id(content)
    if not build_id:
        raise ImageError("no build-id, so its target integers could not be told from another's")
    sections = [
        struct.unpack_from("<IIQQQQIIQQ", data, section_at + index * section_size)
        for index in range(section_count)
    ]
    return Image(entry, build_id, tuple(segments), _functions(data, sections))


def _build_id(notes: bytes) -> str:
    at = 0
    while at + 12 <= len(notes):
        name_size, size, kind = struct.unpack_from("<III", notes, at)
        name_at = at + 12
        value_at = name_at + (name_size + 3) // 4 * 4
        if kind == _NOTE_GNU_BUILD_ID and notes[name_at : name_at + name_size] == b"GNU\0":
            return notes[value_at : value_at + size].hex()
        at = value_at + (size + 3) // 4 * 4
    return ""


def _functions(data: bytes, sections: list[tuple[int, ...]]) -> dict[str, Function]:
    found: dict[str, Function] = {}
    for section in sections:
        if section[1] != _SHT_SYMTAB:
            continue
        names_at = sections[section[6]][4]
        for at in range(section[4], section[4] + section[5], 24):
            name, info, _, _, value, size = struct.unpack_from("<IBBHQQ", data, at)
            if info & 15 == _STT_FUNC:
                end = data.index(b"\0", names_at + name)
                found[data[names_at + name : end].decode()] = Function(value, value + size)
    return found
