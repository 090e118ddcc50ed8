"""Build the `shakespeare` text that comes with the package.

python scripts/build_shakespeare.py TEXT_FILE
"""

from __future__ import annotations

import argparse
import lzma
from pathlib import Path

TARGET = Path(__file__).parents[1] / "src/drumline/data/files/shakespeare.txt.xz"


def main() -> None:
    """Compress the text, and say how large it is now."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", type=Path, help="the plays as one text file")
    content = parser.parse_args().text.read_bytes()
    content.decode("ascii")  # each character is one byte
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_bytes(lzma.compress(content, preset=9 | lzma.PRESET_EXTREME))
    print(f"{TARGET}: {TARGET.stat().st_size} bytes for {len(content)} characters")


if __name__ == "__main__":
    main()
