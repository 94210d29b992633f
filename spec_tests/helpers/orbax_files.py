"""The files of a checkpoint of Orbax without what differs from save to save: times, the path of the folder, and the
names of files that a database has by chance."""

import re
from collections.abc import Mapping

_NAME = re.compile(r"[0-9a-f]{32}")


def settled(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return files by path, equal for equal checkpoints of Orbax; all others are as they are."""
    if not any(path.rpartition("/")[2] == "_CHECKPOINT_METADATA" for path in files):
        return dict(files)
    found: dict[str, bytes] = {}
    for path, octets in sorted(files.items()):
        name = path.rpartition("/")[2]
        if name == "_CHECKPOINT_METADATA":
            octets = re.sub(rb"\d{19}", b"TIME", octets)
        elif name == "commit_success.txt":
            octets = re.sub(rb"(?<= to )/.*", b"PATH", octets)
        elif name == "manifest.ocdbt":
            # The magic and the size; a random name, the time and a checksum are further on.
            octets = octets[:12]
        elif _NAME.fullmatch(name):
            # Nodes have names of files, and end with a checksum of all that.
            octets = re.sub(rb"[0-9a-f]{32}", b"NAME", octets)
            octets = octets[:-4] if octets.startswith(bytes.fromhex("0cdb20de")) else octets
            path = path.removesuffix(name) + "NAME"
            while path in found:
                path += "+"
        found[path] = octets
    return found
