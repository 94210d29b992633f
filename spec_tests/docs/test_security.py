"""Each guarantee of SECURITY.md has tests that fail if it is broken."""

import ast
import re

import pytest

from spec_tests.helpers.paths import ROOT

PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
HOSTILE = (
    "formats/test_hostile_files.py::test_a_hostile_file_is_refused_by_every_verb_and_leaves_nothing"
)
LINKS = "formats/test_hostile_files.py::test_a_link_out_of_a_checkpoint_is_not_read_through"
CACHES = "formats/test_hostile_files.py::test_links_of_a_cache_are_read_through"
NAMED = "formats/test_hostile_files.py::test_a_file_that_is_named_may_be_a_link"
NODES = "wire/test_pickle.py::test_what_would_be_called_is_a_node"
CARRIED = "formats/test_torch_write.py::test_an_object_that_would_run_code_is_not_carried"
DEPTH = "wire/test_pickle.py::test_depth_is_no_danger"
LAUGHS = "wire/test_pickle.py::test_laughs_cost_nothing"
COST = "formats/test_cost.py::test_twice_as_much_takes_about_twice_as_long"
MEMORY = "formats/test_cost.py::test_memory_is_a_documented_multiple_of_the_files"
ERRORS = "formats/test_cost.py::test_every_error_of_a_construct_is_ours_and_short"
PARSERS = "architecture/test_decoding.py::test_foreign_json_has_one_parser"
URLS = "storage/test_remote.py::test_urls_that_cannot_be_used_are_refused_without_a_request"
SECRETS = "cli/test_cli.py::test_no_error_repeats_the_secret_of_a_url"
ADDRESS = "storage/test_remote.py::test_the_address_of_a_service_is_told_without_its_secrets"
PLAIN = "storage/test_remote.py::test_a_service_without_encryption_is_said_to_need_permission"
LENGTH = "storage/test_remote.py::test_an_answer_of_another_length_is_an_error"
PRINTED = "verbs/test_hostile_dialects.py::test_no_command_prints_control_characters_of_a_file"
PRINTERS = "architecture/test_decoding.py::test_texts_are_printed_in_one_place"
FILTERED = "architecture/test_decoding.py::test_sentences_of_a_file_pass_the_filter"
FOLDERS = "verbs/test_newest.py::test_a_folder_of_too_many_folders_is_refused"
HIDDEN = "verbs/test_newest.py::test_hidden_folders_links_and_deep_folders_are_not_searched"
KINDS = "wire/test_kinds.py::test_a_kind_is_told_by_its_first_bytes"
BITS = "verbs/test_every_bit.py::test_every_bit_is_found_or_harmless"
UNTOUCHED = "verbs/test_verbs.py::test_a_source_is_never_touched"

TESTS: dict[str, tuple[str, ...]] = {
    "No code runs": (NODES, CARRIED),
    "Nothing in a file is evaluated": (NODES, PARSERS),
    "Pickles of PyTorch are read as data": (NODES,),
    "never copies an object that would run code": (CARRIED,),
    "gives PyTorch only plain values": (CARRIED,),
    "No file outside the checkpoint is opened": (HOSTILE, LINKS),
    "File names inside an index": (HOSTILE,),
    "An absolute path, `..`": (HOSTILE,),
    "A symbolic link that leads out": (LINKS, CACHES),
    "The file that you name may be a link": (NAMED,),
    "Cost is bounded by the size": (HOSTILE, COST, MEMORY),
    "Time and memory grow in proportion": (HOSTILE, COST),
    "Reading takes at most 300 bytes": (MEMORY,),
    "Arrays that repeat bytes": (HOSTILE, COST),
    "These count over the whole checkpoint": (HOSTILE, COST),
    "A header that claims 2^60 elements": (HOSTILE,),
    "A compressed member is inflated only": (HOSTILE,),
    "Nesting, cycles, shared bytes": (HOSTILE, DEPTH, LAUGHS, PARSERS),
    "Opening, listing, verifying and loading": (COST,),
    "One search of resharding is slower": (
        "geometry/test_overlap.py::test_the_search_expands_about_as_many_candidates_as_there_are_regions_and_pairs",
    ),
    "Libraries get bytes, not paths": (HOSTILE,),
    "It gets only the bytes of the file": (HOSTILE,),
    "shardvar first rejects external links": (HOSTILE,),
    "It reads texts in attributes itself": (HOSTILE,),
    "URLs carry no secrets": (URLS, SECRETS),
    "Credentials come from the environment": (ADDRESS,),
    "A URL with a password": (URLS, SECRETS),
    "Messages quote at most one line of a server": (ADDRESS,),
    "Unencrypted connections are limited": (PLAIN, URLS),
    "A response of unexpected length": (LENGTH,),
    "Messages are safe to print": (PRINTERS, FILTERED),
    "contain no control characters": (PRINTED, PRINTERS, FILTERED),
    "The length of errors": (ERRORS, PRINTED, FILTERED),
    "A search is bounded": (FOLDERS,),
    "Below a directory without a checkpoint": (FOLDERS,),
    "Symbolic links out of the directory": (HIDDEN,),
    "To identify a foreign file": (KINDS,),
    "Damage is reported": (BITS,),
    "Checksums are compared when": (BITS,),
    "Damaged data raises an error": (BITS,),
    "The source is never written to": (UNTOUCHED,),
    "An unfinished target never looks finished": ("crash/test_crash.py", "crash/test_power_cut.py"),
    "A bad file that causes a `KeyError`": (HOSTILE, ERRORS, PARSERS),
}
"""The tests of each sentence, which is named by words that only it has."""


def sentences() -> list[str]:
    """The sentences of the guarantees, without marks of emphasis."""
    text = PAGE.partition("## Guarantees")[2].partition("`spec_tests/docs/")[0]
    text = text.partition("For any bytes in a file:")[2].replace("**", "")
    found = []
    for paragraph in re.split(r"\n- |\n\n", text):
        joined = " ".join(paragraph.split())
        found += [each for each in re.split(r"(?<=[.`])(?<!`\.`)\s+(?=[A-Z])", joined) if each]
    return found


@pytest.mark.parametrize("sentence", sentences())
def test_each_sentence_has_tests_that_exist(sentence: str) -> None:
    tests = [test for words, some in TESTS.items() if words in sentence for test in some]
    assert tests, "Write a test of this sentence, and name it above."
    for test in tests:
        path, _, name = test.partition("::")
        tree = ast.parse((ROOT / "spec_tests" / path).read_text(encoding="utf-8"))
        names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert not name or name in names, test


def test_no_sentence_is_named_that_is_gone() -> None:
    there = sentences()
    assert [words for words in TESTS if not any(words in each for each in there)] == []
