"""The requests of a reshard by workers in a bucket: the counts that predictions are made of, at a
server."""

import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import shardvar as sv

pytest.importorskip("benchmarks", reason="the benchmarks stand in the tree, not in the wheel")

from benchmarks.bucket_requests import Job  # after the skip
from shardvar.planning.policies import BalancedPolicy
from spec_tests.helpers.bucket_proxy import Asked, Proxy, proxy_before
from spec_tests.helpers.bucket_servers import moto

MIB = 1 << 20


@pytest.fixture(scope="module")
def proxy() -> Iterator[Proxy]:
    for package in ("moto", "obstore"):
        pytest.importorskip(package, reason="make cloud installs it")
    with moto() as port, proxy_before(port) as state:
        variables = {
            "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": state.url, "AWS_ALLOW_HTTP": "true",
        }  # fmt: skip
        with patch.dict(os.environ, variables):
            yield state


def kind_of(asked: Asked) -> str:
    """Return the kind of a request, in the words of the model."""
    _, _, query = asked.path.partition("?")
    if asked.method == "PUT":
        is_copy = "x-amz-copy-source" in asked.headers
        return "copy" if is_copy else "part" if "partNumber" in query else "PUT"
    if asked.method == "POST":
        return "begin" if "uploads" in query else "complete" if "uploadId" in query else "delete"
    return "list" if "list-type" in query else asked.method


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize(
    ("count", "nbytes", "ending"),
    [(6, MIB, ""), (3, 5 * MIB, ""), (2, 24 * MIB, ""), (5, MIB, ".safetensors.index.json")],
)
def test_a_reshard_makes_the_requests_that_are_predicted(
    count: int, nbytes: int, ending: str, workers: int, proxy: Proxy, request: Any
) -> None:
    """Of each kind as many, for the workers that got a file."""
    place = f"s3://bucket/{abs(hash(request.node.name))}"
    values = np.zeros(nbytes, np.uint8)
    keys = [f"w{number}" for number in range(count)]
    sv.save(f"{place}/source", dict.fromkeys(keys, values), policy=BalancedPolicy(count))
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as executor:
        proxy.asked.clear()
        sv.reshard(
            f"{place}/source",
            f"{place}-target/m{ending}",
            policy=BalancedPolicy(count),
            executor=executor,
        )
        found = Counter(map(kind_of, proxy.asked))
        # A worker looks at the index of the source first.
        is_opening = [
            each.method == "HEAD" and each.path.endswith("/source.svindex") for each in proxy.asked
        ]
    assert 1 <= sum(is_opening) <= workers
    assert found == Job(count, nbytes, is_renamed=bool(ending)).requests(sum(is_opening))


KINDS = {"begin": "put", "complete": "put"}
"""The kinds of a dry run, by those of the model; others have the same name in small letters."""


@pytest.mark.parametrize(
    ("nbytes", "ending", "options"),
    [
        (MIB, "", {}),
        (24 * MIB, "", {}),
        (24 * MIB, "", {"format": "tensorflow"}),
        (MIB, ".safetensors.index.json", {"policy": BalancedPolicy(3)}),
        (MIB, "", {"format": "torch", "policy": BalancedPolicy(3)}),
        (MIB, "/", {"format": "zarr"}),
        (MIB, "/", {"format": "orbax"}),
    ],
)
def test_a_dry_run_tells_the_requests_that_a_server_gets(
    nbytes: int, ending: str, options: dict[str, Any], proxy: Proxy, request: Any
) -> None:
    """The same number of each kind, but for a look at folders that is made again."""
    place = f"s3://bucket/{abs(hash(request.node.name))}"
    tensors = {f"w{number}": np.zeros(nbytes, np.uint8) for number in range(3)}
    sv.save(f"{place}/source", tensors, policy=BalancedPolicy(3))

    def reshard(*, dry_run: bool) -> Any:
        proxy.asked.clear()
        return sv.reshard(
            f"{place}/source", f"{place}-target/m{ending}", dry_run=dry_run, **options
        )

    told = Counter(reshard(dry_run=True).requests)
    assert {asked.method for asked in proxy.asked} <= {"GET", "HEAD"}
    reshard(dry_run=False)
    kinds = (kind_of(asked) for asked in proxy.asked)
    made = Counter(KINDS.get(kind, kind.lower()) for kind in kinds)
    assert not made - told
    assert told - made <= Counter(list=ending == "/")
