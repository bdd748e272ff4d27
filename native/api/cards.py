"""Generator of the C table of cards (`sim/node/card.h`) from `cards.tsv` and `mig.tsv` beside this file."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).resolve().parent
UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
BRANDS = {"TESLA": 2, "NVIDIA": 14}  # nvmlBrandType_t
ARCHITECTURES = {"PASCAL": 4, "VOLTA": 5, "TURING": 6, "AMPERE": 7, "HOPPER": 9, "BLACKWELL": 10}  # NVML_DEVICE_ARCH_*
TEXTS = frozenset({"key", "aliases", "name", "board_part", "gpu_part", "vbios"})
MIG_MAX = 8  # as CARD_MIG_MAX and CARD_MIG_STARTS_MAX of card.h


class TableError(ValueError):
    """An invalid value in a table of cards."""


def _rows(path: Path) -> list[list[str]]:
    lines = [line.split("\t") for line in path.read_text().splitlines() if line and not line.startswith("#")]
    for number, line in enumerate(lines):
        if len(line) != len(lines[0]):
            raise TableError(f"{path.name}: row {number} has {len(line)} fields, the first has {len(lines[0])}")
    return lines


def load_cards(path: Path = HERE / "cards.tsv") -> list[dict[str, str]]:
    """Return one dictionary from figure to text for each card, in the order of the columns."""
    rows = _rows(path)
    return [{row[0]: row[column] for row in rows} for column in range(1, len(rows[0]))]


def load_mig(path: Path = HERE / "mig.tsv") -> dict[str, list[dict[str, str]]]:
    """Return the GPU instance profiles of each card that has any, by the card's key."""
    header, *rows = _rows(path)
    profiles: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        profiles.setdefault(row[0], []).append(dict(zip(header[1:], row[1:], strict=True)))
    return profiles


def number(figure: str, text: str) -> int:
    """Return the value of a field: a whole number, decimal or 0x, perhaps in KiB, MiB or GiB, or a name of NVML."""
    names = {"nvml_brand": BRANDS, "nvml_arch": ARCHITECTURES}.get(figure, {})
    if text in names:
        return names[text]
    if not text:
        return 0
    found = re.fullmatch(r"(0x[0-9A-F]+|[0-9]+)(KiB|MiB|GiB)?", text)
    if found is None:
        raise TableError(f"{figure}: '{text}' is not a number")
    return int(found[1], 0) * UNITS[found[2] or ""]


def _value(figure: str, text: str) -> str:
    return f'"{text}"' if figure in TEXTS else f"{number(figure, text)}u{'ll' * (number(figure, text) >> 32 != 0)}"


def _profile(profile: dict[str, str]) -> str:
    starts = profile["starts"].split(",")
    if len(starts) > MIG_MAX:
        raise TableError(f"{profile['name']}: {len(starts)} places, at most {MIG_MAX}")
    parts = [f'.name = "{profile["name"]}"', f".start_count = {len(starts)}", f".starts = {{{', '.join(starts)}}}"]
    parts += [f".{name} = {int(text)}" for name, text in profile.items() if name not in ("name", "starts")]
    return f"{{{', '.join(parts)}}}"


def cards_source(banner: str) -> str:
    """Return the C file that defines `cards` and `card_count`."""
    profiles = load_mig()
    cards = load_cards()
    unknown = profiles.keys() - {card["key"] for card in cards}
    if unknown:
        raise TableError(f"mig.tsv names cards that cards.tsv lacks: {', '.join(sorted(unknown))}")
    lines = [banner, '#include "sim/node/card.h"\n\nconst struct card cards[] = {\n']
    for card in cards:
        mig = profiles.get(card["key"], [])
        if len(mig) > MIG_MAX:
            raise TableError(f"{card['key']}: {len(mig)} GPU instance profiles, at most {MIG_MAX}")
        lines.append("    {\n")
        lines += [f"        .{figure} = {_value(figure, text)},\n" for figure, text in card.items()]
        lines.append(f"        .mig_count = {len(mig)},\n")
        if mig:
            lines += ["        .mig = {\n", *(f"            {_profile(p)},\n" for p in mig), "        },\n"]
        lines.append("    },\n")
    return "".join([*lines, "};\nconst size_t card_count = sizeof cards / sizeof cards[0];\n"])
