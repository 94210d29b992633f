"""The table of layers: which layer may import which, as docs/design.md draws it."""

_MEMORY = ("errors", "forks", "layout", "layouts", "tracking", "devices", "random", "variables", "nn")
_DISK = ("errors", "forks", "layout", "planning", "wire", "storage", "formats", "engine")
_BELOW_ROOF = (*_MEMORY, "training", *_DISK[3:], "checkpoint")

# layer -> what its modules may import besides themselves; a dotted name allows that one module of a layer
ALLOWED: dict[str, tuple[str, ...]] = {
    "_version": (),
    "limits": (),
    "pictures": ("limits",),
    "errors": ("pictures",),
    "forks": (),
    "layout": ("errors", "limits", "pictures"),
    "layouts": ("errors", "limits", "pictures", "layout"),
    "tracking": ("errors",),
    "devices": ("errors", "forks", "limits", "pictures", "layout", "layouts"),
    "random": ("errors", "layout"),
    "variables": ("errors", "forks", "pictures", "layout", "tracking", "devices", "random"),
    "nn": ("errors", "layout", "tracking", "devices", "random", "variables"),
    "training": _MEMORY,
    "planning": ("errors", "limits", "layout", "pictures"),
    "wire": ("errors", "limits"),
    "storage": ("errors", "forks", "pictures.words", "_version"),
    "formats": ("errors", "forks", "limits", "pictures", "layout", "planning", "wire", "storage"),
    "engine": (
        "errors",
        "forks",
        "layout",
        "planning",
        "formats.protocol",
        "storage.protocol",
        "storage.concurrency",
        "storage.cores",
        "wire.crc",
        "wire.strings",
    ),
    "checkpoint": (*_MEMORY, *_DISK[3:], "layouts", "limits", "pictures", "_version"),
    "view": ("errors", "layout", "planning", "pictures", "storage.protocol", "checkpoint"),
    "vectors": ("errors",),
    "cli": (*_BELOW_ROOF, "pictures", "view", "vectors"),
    "__main__": ("cli",),
    "testing": _BELOW_ROOF,
    "conformance": (*_BELOW_ROOF, "testing"),
}
ROOF = ("cli", "testing", "conformance")  # the only layers that may use the face, ``import shardvar as sv``
