"""Damage to files: one byte that is another."""

from pathlib import Path


def flip(path: Path, at: int | None = None, mask: int = 1) -> None:
    """Flip the bits of a mask in one byte of a file, by default in its middle."""
    octets = bytearray(path.read_bytes())
    octets[len(octets) // 2 if at is None else at] ^= mask
    path.write_bytes(octets)


def flip_values(checkpoint: Path) -> None:
    """Flip a bit of the values of a native checkpoint, which has one data file."""
    [file] = checkpoint.parent.glob(f"{checkpoint.name}.svdata-*")
    flip(file)
