"""The test vectors of docs/derivation.py: small files, statements and verdicts, made by NumPy and nothing of
shardvar.

    python -m spec_tests.vector_generators.derivations     write docs/derivation-vectors.json
"""

import json
from base64 import b64encode
from collections.abc import Callable, Mapping
from hashlib import sha256
from io import BytesIO
from typing import Any

import numpy as np

from spec_tests.helpers.paths import DOCS
from spec_tests.vector_generators.digests import digest

PATH = DOCS / "derivation-vectors.json"
Tensors = dict[str, Any]
T = np.arange(1, 97, dtype=np.float32)
NAMES = {
    "uint8": "U8", "int32": "I32", "uint16": "U16", "uint32": "U32", "float32": "F32", "float64": "F64",
    "float16": "F16", "bfloat16": "BF16", "int64": "I64", "bool": "BOOL",
}  # fmt: skip


def safetensors_bytes(
    tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None
) -> bytes:
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    data = b""
    for key, array in tensors.items():
        place = [len(data), len(data) + array.nbytes]
        about = {"dtype": NAMES[array.dtype.name], "shape": array.shape, "data_offsets": place}
        header[key], data = about, data + array.tobytes()
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    return len(head).to_bytes(8, "little") + head + data


def npz_bytes(tensors: Tensors) -> bytes:
    stream = BytesIO()
    np.savez(stream, **tensors)
    return stream.getvalue()


def digest_of(tensors: Tensors) -> str:
    every = [digest(k.encode(), a.dtype.name, [*a.shape], a.tobytes()) for k, a in tensors.items()]
    return sha256(b"".join(sorted(every))).hexdigest()


def subject(name: str, tensors: Tensors) -> dict[str, Any]:
    """Return a checkpoint as a statement names it."""
    return {"name": name, "digest": {"shardvarDigest1": digest_of(tensors)}}


def rules(*texts: str, **sizes: int) -> dict[str, Any]:
    """Return the options of a map."""
    return {"map": {"rules": texts, "sizes": sizes}}


def interleaved(q: Any, k: Any, v: Any) -> Any:
    """Return the queries, keys and values of each of three groups, one after the other."""
    parts = (q.reshape(3, 2, 4, 3), k.reshape(3, 1, 4, 3), v.reshape(3, 1, 4, 3))
    return np.concatenate(parts, axis=1).reshape(48, 3)


Q, K, V, KV = (
    T[:72].reshape(24, 3),
    T[:36].reshape(12, 3),
    T[9:45].reshape(12, 3),
    T[:60].reshape(3, 4, 5),
)
GATE, UP = T[:6].reshape(2, 3), T[6:12].reshape(2, 3)
LAYERS = {f"l.{n}": T[n : n + 2] for n in range(4)}
SOME = {"e": GATE, "x.f": T[:4], "y": T[:3]}
RIGHT: list[tuple[str, dict[str, Any], list[Tensors], Tensors, dict[str, int], list[str]]] = [
    ("Nothing changes.", {}, [SOME], SOME, {"moved": 3}, []),
    ("Words of keys become an axis.", rules("{s:gate|up}.w[o i] -> gate_up.w[(o s) i]"),
     [{"gate.w": GATE, "up.w": UP}], {"gate_up.w": np.stack([GATE, UP], 1).reshape(4, 3)}, {"moved": 1}, []),
    ("An axis becomes words of keys.", rules("gu[(s o) i] -> {s:gate|up}.w[i o]"),
     [{"gu": T[:12].reshape(4, 3)}], {"gate.w": GATE.T.copy(), "up.w": UP.T.copy()}, {"moved": 2}, []),
    ("Numbers of keys become an axis.", rules("l.{e}[o] -> w[e o]"),
     [LAYERS], {"w": np.stack([*LAYERS.values()])}, {"moved": 1}, []),
    ("An axis becomes numbers of keys.", rules("k[i l o] -> layers.{l+2}.w[o i]"),
     [{"k": KV}], {f"layers.{n + 2}.w": KV[:, n].T.copy() for n in range(4)}, {"moved": 4}, []),
    ("Indices in an axis are permuted.", rules("q[(n d two) i] -> k[(n two d) i]", n=4, two=2),
     [{"q": Q}], {"k": Q.reshape(4, 3, 2, 3).swapaxes(1, 2).reshape(24, 3)}, {"moved": 1}, []),
    ("Ranges are filled.", rules("q[(g s d) i] -> w[(g s d) i] @ s=0:r", "k[(g d) i] -> w[(g s d) i] @ s=r",
                                 "v[(g d) i] -> w[(g s d) i] @ s=r+1", g=3, r=2),
     [{"q": Q, "k": K, "v": V}], {"w": interleaved(Q, K, V)}, {"moved": 1}, []),
    ("A range is left out.", rules("t[v i] @ v=0:n -> e[v i]", "t[v i] @ v=n: -> nothing", n=8),
     [{"t": T[:20].reshape(10, 2)}], {"e": T[:16].reshape(8, 2)}, {"moved": 1}, []),
    ("A tensor is used twice, one not, and the rest is renamed.",
     rules("e -> a", "also e -> b", "{x:**}.f -> nothing", "rest {x:*} -> z.{x}"),
     [SOME], {"a": GATE, "b": GATE, "z.y": T[:3]}, {"moved": 3}, []),
    ("Ranges of numbers in keys.", rules("l.{l} @ l=0:2 -> d.{l}", "l.{l} @ l=2:4 -> m.{l}"),
     [LAYERS], {f"{'dm'[n // 2]}.{n % 2}": T[n : n + 2] for n in range(4)}, {"moved": 4}, []),
    ("Keys get a beginning.", {**rules("{x:**} -> {x}"), "add_prefix": "model."},
     [SOME], {f"model.{key}": each for key, each in SOME.items()}, {"moved": 3}, []),
    ("Two sources have other keys.", {}, [{"a": GATE}, {"b": UP}], {"a": GATE, "b": UP}, {"moved": 2}, []),
    ("A map sees the number of a source before its keys.", rules("{r}/w[o i] -> w[(r o) i]"),
     [{"w": GATE}, {"w": UP}], {"w": np.concatenate([GATE, UP])}, {"moved": 1}, []),
    ("A cast rounds to the nearest, and to the even one of two.", {"cast": "float16"},
     [{"w": np.array([-0.0, 1, 1 + 2**-11, 1 + 3 * 2**-11, 1e-8, 3])}],
     {"w": np.array([-0.0, 1, 1, 1 + 2**-9, 0, 3], np.float16)}, {"rounded": 1}, ["cast"]),
    ("A transpose of tensors that globs choose.", {"transpose": ["w*"]},
     [{"w1": GATE, "b": T[:3]}], {"w1": GATE.T.copy(), "b": T[:3]}, {"moved": 2}, ["transpose"]),
    ("Tensors are renamed, and others left out.",
     {"exclude": ["x*"], "rename": [["e", "embed"]], "strip_prefix": "m."},
     [{f"m.{key}": each for key, each in SOME.items()} | {"x": T[:1]}],
     {"embed": GATE, "x.f": T[:4], "y": T[:3]}, {"moved": 3}, ["exclude", "rename", "strip_prefix"]),
    ("A rule computes.", rules("2 * w[o i] + 1 -> w[i o]"),
     [{"w": GATE}], {"w": (2 * GATE + 1).T.copy()}, {"computed": 1}, ["arithmetic"]),
]  # fmt: skip
"""The reason for a case, its options, sources, result, numbers of tensors, and its needs besides moves."""


def changed(tensors: Tensors) -> Tensors:
    """Return tensors of which the last element of the largest has another bit."""
    found = {key: each.copy() for key, each in tensors.items()}
    largest = max(found, key=lambda key: found[key].size)
    found[largest].reshape(-1).view(np.uint8)[-2] ^= 1
    return found


def first(tensors: Tensors, change: Callable[[Any], Any]) -> Tensors:
    """Return tensors of which the first is another one."""
    key, *_ = tensors
    return {**tensors, key: change(tensors[key])}


ON_RESULT: dict[str, Callable[[Tensors], Tensors]] = {
    "A tensor more": lambda t: {**t, "more": T[:2]},
    "A tensor less": lambda t: dict([*t.items()][1:]),
    "Another dtype of the same bytes": lambda t: first(t, lambda a: a.view(np.int32)),
    "Another shape of the same elements": lambda t: first(t, lambda a: a.reshape(-1)),
    "Another name": lambda t: {f"{key}_" if key == next(iter(t)) else key: t[key] for key in t},
    "Zeros": lambda t: first(t, np.zeros_like),
}  # fmt: skip
NO, UNDECIDED = "not derived", "cannot be decided"


def ruled(*texts: str) -> Callable[[Any], Any]:
    """Return the edit of a predicate that puts other rules into it."""
    return lambda predicate: predicate["options"]["map"].update(rules=texts)


ON_STATEMENT: dict[str, tuple[Callable[[Any], Any], str]] = {
    "Another rule": (ruled("gu[(o s) i] -> {s:gate|up}.w[i o]"), NO),
    "Words in another order": (ruled("gu[(s o) i] -> {s:up|gate}.w[i o]"), NO),
    "A rule that fits no extent": (ruled("gu[(s s2 o) i] -> {s:gate|up}.{s2:a|b|c}[i o]"), NO),
    "A rule twice": (ruled(*2 * ["gu[(s o) i] -> {s:gate|up}.w[i o]"]), NO),
    "No rule": (ruled(), NO),
    "Other numbers of tensors": (lambda p: p["classes"].update(moved=3), NO),
    "A newer definition of arithmetic": (lambda p: p.update(definition=2), UNDECIDED),
    "An option that no version has": (lambda p: p["options"].update(prune=0.5), UNDECIDED),
}


def vectors() -> dict[str, Any]:
    files, cases = dict[str, str](), list[dict[str, Any]]()

    def put(tensors: Tensors, number: int) -> str:
        content = (npz_bytes, safetensors_bytes)[number % 2](tensors)
        name = f"{sha256(content).hexdigest()[:8]}.{('npz', 'safetensors')[number % 2]}"
        files[name] = b64encode(content).decode()
        return name

    for number, (why, options, sources, result, classes, needs) in enumerate(RIGHT):

        def add(
            why: str,
            verdict: str,
            result: Tensors,
            sources: list[Tensors],
            edit: Callable[[Any], Any] = lambda _: None,
            claim: Tensors | None = None,
            *,
            options: Any = options,
            classes: Any = classes,
            needs: Any = needs,
            number: int = number,
        ) -> None:
            predicate = {
                "definition": 1,
                "sources": [subject(f"source-{at}", each) for at, each in enumerate(sources)],
                "files": [],
                "options": json.loads(json.dumps(options)),
                "classes": dict(classes),
                "tool": "vectors",
            }
            edit(predicate)
            statement = {
                "_type": "https://in-toto.io/Statement/v1",
                "subject": [subject("result", result if claim is None else claim)],
                "predicateType": "https://shardvar/derivation/v1",
                "predicate": predicate,
            }
            case = {
                "why": why,
                "verdict": verdict,
                "needs": needs,
                "result": put(result, number),
                "sources": [put(each, number + 1) for each in sources],
                "statement": statement,
            }
            cases.append(case)

        add(why, "derived", result, sources)
        add(f"{why} An element of the result changes.", NO, changed(result), sources)
        some = [*sources[:-1], changed(sources[-1])]
        if "left out" not in why and "one not" not in why:
            add(f"{why} An element of a source changes.", NO, result, some)
        if len(sources) > 1:
            add(
                f"{why} The sources are swapped.",
                NO if "map" in options else "derived",
                result,
                sources[::-1],
            )
        if number == 2:
            late = "An element changes after the digest"
            add(f"{late} in the result.", NO, changed(result), sources, claim=result)
            for name, change in ON_RESULT.items():
                add(f"{name} in the result.", NO, change(result), sources)
            for name, (edit, verdict) in ON_STATEMENT.items():
                add(f"{name} in the statement.", verdict, result, sources, edit)
    return {"version": 1, "cases": cases, "files": files}


def text() -> str:
    """Return the file of vectors: a line for each case, and for each file."""
    found = vectors()
    cases = ",\n".join("  " + json.dumps(each) for each in found["cases"])
    files = ",\n".join(f'  "{name}": "{content}"' for name, content in found["files"].items())
    return (
        f'{{"version": {found["version"]},\n"cases": [\n{cases}\n],\n"files": {{\n{files}\n}}}}\n'
    )


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
