"""The table of layers: which layer may import which, as docs/design.md draws it.

Two wings stand on one foundation, under one roof. The tool never imports the reference.
"""

FOUNDATION = (
    "limits",
    "pictures",
    "errors",
    "forks",
    "extras",
    "layout",
    "layout.meshes",
    "planning",
    "wire",
    "storage",
    "maps",
)
TOOL = ("formats", "engine", "verbs", "view", "torch", "jax", "cli")
REFERENCE = (
    "spec",
    "reference.tracking",
    "reference.devices",
    "reference.random",
    "reference.variables",
    "reference.nn",
    "reference.training",
    "reference.objects",
    "vectors",
    "testing",
    "conformance",
)

_ENGINE_ROOM = (
    "errors",
    "forks",
    "layout",
    "planning",
    "maps",
    "wire",
    "storage",
    "formats",
    "engine",
)
_MEMORY = (
    "errors",
    "forks",
    "layout",
    "layout.meshes",
    "reference.tracking",
    "reference.devices",
    "reference.random",
    "reference.variables",
    "reference.nn",
)
_VERBS = (*_ENGINE_ROOM, "layout.meshes", "limits", "pictures", "_version")
_BELOW_ROOF = (*_MEMORY, "reference.training", *_ENGINE_ROOM[3:], "verbs", "reference.objects")

# layer -> what its modules may import besides themselves. The name of a layer does not mean the
# layers inside it. The name of a module allows that one module.
ALLOWED: dict[str, tuple[str, ...]] = {
    "_version": (),
    "spec": (),
    "limits": (),
    "pictures": ("limits",),
    "errors": ("pictures",),
    "forks": (),
    "extras": ("errors",),
    "layout": ("errors", "limits", "pictures"),
    "layout.meshes": ("errors", "limits", "pictures", "layout"),
    "planning": ("errors", "limits", "layout", "pictures"),
    "wire": ("errors", "limits"),
    "storage": ("errors", "extras", "forks", "pictures.words", "wire.strict_json", "_version"),
    "maps": (
        "errors",
        "limits",
        "layout",
        "planning",
        "pictures",
        "storage.local",
        "wire.strict_json",
    ),
    "formats": (
        "errors",
        "extras",
        "forks",
        "limits",
        "pictures",
        "layout",
        "planning",
        "wire",
        "storage",
    ),
    "engine": (
        "errors",
        "forks",
        "layout",
        "planning",
        "formats.protocol",
        "maps.expressions",
        "maps.plan",
        "storage.protocol",
        "storage.concurrency",
        "storage.scratch",
        "wire.crc",
        "wire.strict_json",
        "wire.strings",
    ),
    "verbs": _VERBS,
    "view": (
        "errors",
        "layout",
        "layout.meshes",
        "maps.plan",
        "planning",
        "pictures",
        "storage.protocol",
        "verbs",
    ),
    # The faces for training loops hold neither a format nor a protocol.
    "torch": ("errors", "extras", "formats", "layout", "planning", "verbs"),
    "jax": ("errors", "extras", "formats.protocol", "layout", "planning", "verbs"),
    "vectors": ("errors", "layout", "wire.strict_json"),
    "cli": (*_VERBS, "extras", "verbs", "view", "vectors"),
    "__main__": ("cli",),
    "reference.tracking": ("errors",),
    "reference.devices": ("errors", "forks", "limits", "pictures", "layout", "layout.meshes"),
    "reference.random": ("errors", "layout"),
    "reference.variables": (
        "errors",
        "forks",
        "pictures",
        "layout",
        "reference.tracking",
        "reference.devices",
        "reference.random",
    ),
    "reference.nn": (
        "errors",
        "layout",
        "reference.tracking",
        "reference.devices",
        "reference.random",
        "reference.variables",
    ),
    "reference.training": _MEMORY,
    "reference.objects": (*_VERBS, "verbs", "reference.tracking", "reference.variables"),
    "testing": (*_BELOW_ROOF, "extras", "spec"),
    "conformance": (*_BELOW_ROOF, "testing", "spec"),
    "layouts": ("layout", "layout.meshes", "conformance"),
}
ROOF = (
    "cli",
    "testing",
    "conformance",
)  # the only layers that may use the face, ``import shardvar as sv``
