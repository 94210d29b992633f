"""The keys of the JSON that each command prints, for ``shardvar help json`` and docs/cli/json.md.

A key is written as ``jq`` takes it: ``.tensors[].key`` is the key of each tensor. A test compares
the keys below with what the commands print.
"""

from argparse import Namespace
from collections.abc import Iterator
from textwrap import wrap

from shardvar.cli.options import row_lines
from shardvar.cli.output import put, terminal_size

INTRODUCTION = (
    "With --json, a command prints one JSON object, in ASCII. Keys are written here as in jq: "
    "`.tensors[].key` is the key of each tensor.",
    "Every object has `.schema`, which is 1. It increases when a key is removed or changes its "
    "meaning. New keys may be added at any time.",
    'Infinite numbers and NaNs are the strings "inf", "-inf" and "nan". A byte of a key or a '
    'string that is not UTF-8 is a lone surrogate, such as "\\udcff" for the byte 0xff.',
)

_SHARED = {
    "written": """
.path  the new checkpoint
.format  its format
.description  the policy that chose its files
.num_tensors  its tensors
.num_slices  their stored shards
.nbytes  the payload bytes
.file_nbytes  the payload bytes of each data file
.num_copies  ranges that are copied
.read_nbytes  the payload bytes that are read
.peak_nbytes  a bound on the memory for buffers
.num_retries  requests to a server that this process made again while the files were written
.retry_seconds  the seconds of the pauses before these requests
.copied  the files of a model folder that are copied, such as config.json
.changed  the changes in these files, a sentence each
.not_copied  the other files of the folder: the reasons by name""",
    "problem": """
.kind  the class in shardvar.errors
.key  the tensor; null if the problem concerns no single tensor
.file  the data file that is missing, cut short or changed; null if there is none
.message  cause and remedy
.cause  the problem and its place
.remedy  what to do""",
    "tensors": """
.tensors  a list of objects
.tensors[].key  the name
.tensors[].dtype  the dtype
.tensors[].encoding  the encoding of a quantised tensor, such as Q8_0; null for plain values
.tensors[].shape  the shape, of the numbers of a quantised tensor; null if the index does not contain it
.tensors[].stored_shape  the shape as it is stored
.tensors[].num_parameters  its parameters
.tensors[].nbytes  its payload bytes
.tensors[].num_slices  its stored shards
.tensors[].files  the data files that contain it
.tensors[].fault  null, or an object like an item of .damages of verify
.tensors[].setting  true for a plain Python object, such as a learning rate
.tensors[].value  the value of a scalar, a setting as text; null for others, if it was not read, and in a
    bucket for numbers
.tensors[].layout  with --slices: null, or how the shards were cut
.tensors[].layout.rule  the rule, such as a named sharding
.tensors[].layout.mesh  the shape of the device mesh
.tensors[].slices  with --slices: a list of objects, one for each stored shard
.tensors[].slices[].offset  its first element in the tensor
.tensors[].slices[].shape  its shape
.tensors[].slices[].file  its data file
.tensors[].slices[].start  its position in the file, in bytes
.tensors[].slices[].nbytes  its payload bytes
.tensors[].slices[].checksum  eight hexadecimal digits, or null
.tensors[].stats  with --stats: null for strings and if the values cannot be read
.tensors[].stats.count  the elements
.tensors[].stats.min  the smallest finite value
.tensors[].stats.max  the largest finite value
.tensors[].stats.mean  the mean of the finite values
.tensors[].stats.std  their standard deviation
.tensors[].stats.nan  the NaNs
.tensors[].stats.inf  the infinite values
.tensors[].stats.zero  the zeros
.tensors[].stats_error  with --stats: why the values cannot be read; not always present
.tensors[].stats_error.kind  the class in shardvar.errors
.tensors[].stats_error.message  cause and remedy""",
    "map": """
.map.rules  a list of objects, one a rule
.map.rules[].rule  the rule
.map.rules[].matches  the keys that it takes
.map.rules[].num_targets  the tensors that it fills, or helps to fill
.map.rules[].source  the shapes that it takes, as text
.map.rules[].target  the shapes that it fills, as text
.map.rules[].kind  moved (bits), rounded (another dtype) or computed
.map.rules[].exception  also, nothing or else; empty without one
.map.rules[].num_unlike  of diff: how many of the tensors that it fills differ; else null
.map.num_sources  the keys of the source
.map.num_targets  the tensors that the map makes
.map.is_exact  true if no rule computes
.map.summary  what was proven of the map, a list of texts""",
}
"""Rows that several commands share; a problem's are below the key after its name."""

_KEYS = """
an error (exit codes 2 and 3)
.error  an object
.error.kind  the class in shardvar.errors
.error.cause  the problem and its place
.error.remedy  what to do
.error.problems  of a map: all problems, 20 at most and a count; not always present

inspect
.path  the checkpoint
.format  its format
.writer  the program that wrote it; null if unknown
.description  the policy that chose its files; null if unknown
.ties  tensors that have the bytes of another one: its key by theirs
.delta  its kind, if it has only the changes of a model; else null
.metadata  the metadata that its writer stored: strings by name
.num_tensors  the number of listed tensors
.num_parameters  their parameters
.parameters_by_dtype  parameters by dtype, or by encoding of quantised tensors
.bits_per_parameter  the bits of a parameter, with its part of the scales; null without parameters
.num_slices  their stored shards
.nbytes  their payload bytes
.files  the names of the data files
.damaged_files  files of the wrong size, or that cannot be opened: each as a damage of verify
.refers_to  the number of data files of each other checkpoint that this one refers to
.num_settings  the settings among the listed tensors
<tensors>

inspect, if PATH matches several checkpoints
.checkpoints  a list of objects
.checkpoints[].path  the checkpoint
.checkpoints[].format  its format
.checkpoints[].newest  true for the newest one
.checkpoints[].finished  false if its writer was interrupted
.checkpoints[].saved  the time of its last change, in seconds since 1970
.checkpoints[].num_tensors  its tensors and settings; null if it was not opened
.checkpoints[].num_settings  the settings among them
.checkpoints[].nbytes  its payload bytes; null if it was not opened
.checkpoints[].opened  true if its index was read
.checkpoints[].problem  why it is not known to be sound; empty if its index is

show, without KEY
.path  the checkpoint
.format  its format
.keys  the names of all tensors and settings

show
.key  the name of the tensor
.dtype  its dtype
.full_shape  its shape
.shape  the shape of the selection
.verified  true if a checksum of everything that was read was compared
.values  nested lists; complex numbers are [real, imaginary], strings are text

view
.path  the page
.num_tensors  the tensors and settings that it shows
.num_slices  their stored shards
.nbytes  their payload bytes
.num_files  the data files
.num_settings  the settings among them

view --serve
.url  the address of the page

verify
.ok  true if there is no damage, every tensor was read, and all checksums were compared
.path  the checkpoint
.format  its format
.damages  everything that is wrong: a list of objects
<problem> .damages[]
.notes  sentences about oddities that do no harm
.num_tensors  the tensors and settings of the index
.num_settings  the settings among them
.num_slices  their stored shards
.num_files  the data files of the index
.read_nbytes  the payload bytes that were read
.unguarded_nbytes  the payload bytes without a checksum
.doubts  what may be wrong: a list of objects as in .damages
.unverified  the tensors that are not verifiable: a list of objects
.unverified[].key  the name
.unverified[].guarded  true if the format has a checksum of all its bytes
.unverified[].kind  the class in shardvar.errors; null if it was read
.unverified[].message  the reason
.outcomes  by key: "ok", "values match", "damaged" or "not verifiable"
.verdict  the answer: "ok", "values match", "complete", "not finite", "damaged" or "not verified"; of
    a folder, the worst
.bare_index  the file whose keys, dtypes and shapes no checksum covers, or empty
.not_finite  with --nan: "NaN", "infinity" or "NaN and infinity", by key
.others  the other checkpoints in a folder, or all if PATH means several: a list of such objects
.not_read  the files in a folder that belong to no checkpoint: not verified

verify of several PATHs: a list of such objects, or
.path  the checkpoint that cannot be opened
.error  an object
.error.kind  the class in shardvar.errors
.error.cause  the problem and its place
.error.remedy  what to do

verify, with --derived-from
.path  the checkpoint
.sources  the checkpoints that it is said to be made of
.statement  the file of the statement, or several
.verdict  derived, not derived, or cannot be decided
.problems  what differs, or why nothing could be decided
.classes  numbers of tensors
.classes.moved  tensors with the bits of the sources
.classes.rounded  tensors in another dtype
.classes.computed  tensors of other numbers
.ok  true if it is derived

diff
.equal  true if both contain the same tensors
.path_a  the first checkpoint
.path_b  the second checkpoint
.only_in_a  the keys that only the first contains
.only_in_b  the keys that only the second contains
.differences  the tensors that differ: a list of objects
.differences[].key  the name
.differences[].dtype_a  the dtype in the first
.differences[].dtype_b  the dtype in the second
.differences[].shape_a  the shape in the first
.differences[].shape_b  the shape in the second
.differences[].values  null if no value differs, or if they cannot be compared
.differences[].values.count  the elements that differ
.differences[].values.first  the index of the first
.differences[].values.max_absolute  the largest distance; null if there is none
.differences[].values.max_absolute_at  its index
.differences[].values.max_relative  the largest distance over the larger magnitude
.differences[].values.max_relative_at  its index
.differences[].values.num_without_distance  pairs with a NaN
.differences[].values.num_zeros  pairs of two zeros of different signs
.differences[].values.num_nans  pairs of two NaNs of different bits
.differences[].values.cosine  the cosine similarity of the tensors, or null
.differences[].values.relative_norm  |A - B| over the larger norm of the two, or null
.differences[].values.num_rounded  elements that are equal after rounding
.differences[].values.only  "sign of zero", "bits of NaN", both, or null
.differences[].change  the relative norm, or "inf" if values cannot be compared
.unreadable  the tensors that cannot be compared: a list of objects
.unreadable[].side  "a" or "b"
<problem> .unreadable[]
.num_equal  the number of equal tensors
.num_settings  the settings among all tensors of both
.tolerance  the tolerance, as text; null if bits must be equal
.others  of two folders: such an object for each other checkpoint that both have
.checkpoints_only_in_a  of two folders: the paths of the checkpoints that only the first has
.checkpoints_only_in_b  the same of the second
.not_compared  of two folders: the paths in them of files that belong to no checkpoint that was read
.map  with a map: its effect on the first checkpoint; else null
<map>

digest
.path  the checkpoint
.format  its format
.digest  the digest of all tensors; null if one cannot be read
.tensors  digests by key: 64 hexadecimal digits each
.unreadable  the tensors that cannot be read: a list of objects
<problem> .unreadable[]
.manifest  with --write: the manifest that was written
.against  with --against: the manifest that was compared
.differences  with --against: what differs, a list of objects
<problem> .differences[]

reshard
<written>
.free_nbytes  free bytes on the disk of DST, or of temporary files for a bucket
.callback_seconds  the time that the policy took
.num_empty_files  files to which the policy assigned nothing; they are not written
.exceeding  files larger than the limit: a list of objects
.exceeding[].file  its number
.exceeding[].nbytes  its payload bytes
.exceeding[].reason  why it is larger
.untied  pairs of tensors that share their bytes in the source, and not in the target
.num_objects  plain objects, such as settings, that are carried with the tensors
.num_referred  tensors that lie in files of another checkpoint, and are not written
.digests  a sentence on the digests that the checkpoint carries, or that were left out
.reused_files  files that an interrupted run had finished
.lost  tensors that --keep-going left out: a list of objects
<problem> .lost[]
.left_out  keys that the format cannot hold and only their writer reads
.dequantized  with --dequantize: the keys of SRC that became numbers
.num_united  the number of sources if no two have a key, so that their union is written; else 0
.ranks  of a map that makes one checkpoint a rank, or of a pipeline: such an object for each
.map  with --dry-run and a map: its effect; else null
<map>
.dry_run  true if nothing was written
.requests  with --dry-run: the requests to buckets by kind, at most; empty if nothing is in a bucket
.num_files  the number of data files
.verified  with --verify: true if the new checkpoint is intact; else null

delta
.path  the delta
.base  the digest of A, 64 hexadecimal digits
.result  the digest of B
.nbytes  the payload bytes of B
.stored_nbytes  the bytes that the delta has of them, without its table
.num_joined  with --compact: the deltas that were joined; else 0
.dialect  the dialect of another program (--dialect); null for a delta of shardvar
.dry_run  true if nothing was written
.requests  with --dry-run: the requests to buckets by kind, at most; empty if nothing is in a bucket
.tensors  what became of each tensor: a list of objects
.tensors[].key  the name
.tensors[].kind  "equal", "changed", "new", "whole" or "removed"
.tensors[].nbytes  its bytes in B
.tensors[].stored_nbytes  the bytes that the delta has of it
.tensors[].num_changed  the elements that differ; null unless it is changed
.tensors[].num_positions  MiBs whose change is stored as positions and values
.tensors[].num_masks  MiBs whose change is stored as the XOR of all bytes
.tensors[].tie  the tensor whose bytes it has in B (tied weights), or null

apply
<written>
.free_nbytes  free bytes on the disk of OUT, or of temporary files for a bucket
.callback_seconds  the time that the policy took
.num_empty_files  files to which the policy assigned nothing; they are not written
.exceeding  files larger than the limit, as of reshard
.num_objects  plain objects, such as settings, that are carried with the tensors
.num_referred  tensors that lie in files of another checkpoint, and are not written
.digests  a sentence on the digests that the checkpoint carries, or that were left out
.reused_files  files that an interrupted run had finished
.left_out  keys that the format cannot hold and only their writer reads
.untied  pairs of tensors that share their bytes by the delta, and not in OUT
.dry_run  true if nothing was written
.requests  with --dry-run: the requests to buckets by kind, at most; empty if nothing is in a bucket
.num_files  the number of data files
.notes  sentences on what was compared, and what could not be
.already  true if OUT was the result already, so that nothing was written

maps
.maps  a list of objects, of all shipped maps
.maps[].name  its name, as --map takes it
.maps[].about  its purpose
.about  of one map: its purpose
.models  of one map: the models that it is for; empty for any
.rules  of one map: its rules, a list of texts
.sizes  of one map: its sizes, a list of objects
.sizes[].name  the index, as rules have it
.sizes[].size  a number, or an expression as text

clean
.path  the folder
.leftovers  what killed writers have left, by path: a list of objects
.leftovers[].path  its path or URL
.leftovers[].kind  "temporary file", "data file", "share", "folder", "mark", "mark of uploads", "lock" or "claim"
.leftovers[].nbytes  its bytes
.leftovers[].age  the seconds since its last change; null if not known
.leftovers[].writer  who has made a claim, and when; empty for other kinds
.leftovers[].is_old  true if everything of its checkpoint is older than the age limit
.nbytes  the bytes of all leftovers
.num_removed  the leftovers that were removed
.num_at_work  the files that belong to a writer that is at work; they are not listed

formats
.formats  a list of objects
.formats[].format  the name, as --format takes it
.formats[].about  where it comes from
.formats[].read  true if shardvar reads it
.formats[].written  true if shardvar writes it
.formats[].slices  true if it can store a tensor of some dtypes in several shards
.formats[].atomic  true if a checkpoint is replaced in one step
.formats[].in_buckets  true if shardvar writes it to buckets
.formats[].extra  the extra that it needs; null if none

vectors
.out  the folder
.num_files  the files in it
.nbytes  their bytes
.groups  a list of objects
.groups[].group  its name
.groups[].count  its cases
.groups[].title  their subject
"""
"""A block for each command: the keys that it prints, each with its meaning."""


def _rows(lines: str, above: str = "") -> Iterator[tuple[str, str]]:
    """Yield the key and the meaning of each line: shared ones in place, continued ones joined."""
    for line in lines.strip().replace("\n    ", " ").split("\n"):
        if line.startswith("<"):
            name, _, below = line[1:].partition(">")
            yield from _rows(_SHARED[name], below.strip())
        else:
            key, _, text = line.partition("  ")
            yield above + key, text


KEYS = {
    title: dict(_rows(lines))
    for title, _, lines in (block.partition("\n") for block in _KEYS.strip().split("\n\n"))
}
"""The keys that each command prints, and their meanings; those in an object follow its own key."""

_COLUMN = 30
"""The place of a key's meaning."""


def execute(arguments: Namespace) -> int:
    del arguments  # the topic, and there is one
    for line in lines_of_keys(min(terminal_size().columns, 100)):
        put(line)
    return 0


def lines_of_keys(width: int) -> Iterator[str]:
    for paragraph in INTRODUCTION:
        yield from wrap(paragraph, width, break_long_words=False, break_on_hyphens=False)
        yield ""
    for number, (title, keys) in enumerate(KEYS.items()):
        if number:
            yield ""
        yield title
        for key, text in keys.items():
            *above, name = key[1:].split(".")
            yield from row_lines(("  " * len(above) + f".{name}", text), _COLUMN, width)
