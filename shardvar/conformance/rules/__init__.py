"""The rules of the kit: an id, a sentence, a level, the methods that the rule needs, and the law to
check.

A rule has a check: a function of an adapter (wrapped in ``Calls``) and one case, drawn by
Hypothesis, which returns if the case keeps the rule and raises ``Broken`` otherwise. ``rules``
registers a table of rules whose checks stand elsewhere; ``rule`` registers one function, whose
docstring is the law.
Several rules may check one sentence; the part of their ids after the number tells them apart.

Cases are the ordinary ones unless a rule is about the odd ones: at least a row a shard, float32. An
implementation that stumbles over empty shards then breaks the rules of empty shards (``updates.LAWS``),
and not every rule.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any

from hypothesis import strategies as st

from shardvar.conformance.adapter import LEVEL_OF
from shardvar.conformance.calls import Calls
from shardvar.records import frozen

SENTENCES = {
    "000": {
        "R-DIV-1":
            "If the ids do not evenly divide the number of shards, each of the first several shards will be "
            "assigned one more id.",
        "R-DIV-1-owner":
            "ids are assigned to shards in a contiguous manner",
        "R-DIV-1-shards":
            "Div partition strategy is used to partition the variable.",
        "R-PART-1-regions":
            "we are going to partition that variable 3 ways on the first dimension",
        "R-PART-1-fixed":
            "`num_partitions` is a list/tuple representing the number of partitions on each dimension",
        "R-PART-1-max":
            "Existing partitioners like `min_max_variable_partitioner`, `variable_axis_size_partitioner` and "
            "`fixed_size_partitioner` conform to the required signature so they can be directly used.",
        "R-PART-3-min":
            "Create a partitioner that allocates at least 64MB for each partition.",
        "R-PART-3-upper":
            "The max number of such partitions (upper bound) is the 10.",
        "R-ID-1":
            "Assuming we assign consecutive integer ids along the first axis of the variable",
        "R-CONCAT-1":
            "ShardedVariable will register a tensor conversion function that concats shards to the full value.",
        "R-CONCAT-1-few R-VAR-1 R-READ-1":
            "With above, users' model code doesn't need to change w.r.t whether the variable is sharded or not.",
        "R-SV-1 R-VAR-2":
            "that list of variables compose a larger variable",
        "R-CREATE-2":
            "We will fall back to creating normal variables when there are less than two partitions.",
        "R-PART-4":
            "Exception will raised if the partitioner returns an unsupported partitioning layout.",
        "R-PART-4-axis":
            "We are only going to support partitioning on the first / outermost axis at the moment.",
        "R-MATMUL-1":
            "For example, `tf.matmul` will concat the sharded variable and then do the multiplication.",
        "R-LOOKUP-2":
            "Python ops that have well defined partitioned behavior (e.g, `tf.nn.embedding_lookup`, "
            "`tf.nn.sampled_softmax_loss`) will treat sharded variable as a list of variables for parallel "
            "operations",
        "R-SV-3":
            "`ShardedVariable` will support read and update functions like `read_value`, `assign_add` and "
            "`scatter_add`.",
        "R-INIT-5":
            "For seeded initializers, the seed must be changed deterministically for each shard, otherwise each "
            "shard will use the same values.",
        "R-INIT-4":
            "`__call__(shape, dtype, partition)` returns the initial value of the partition.",
        "R-INIT-4-range":
            "def __init__(self, minval=-0.05, maxval=0.05, seed=None):",
        "R-INIT-6":
            "`shape` is the full combined shape",
        "R-INIT-2":
            "If not, this initializer is not partition aware and we will go ahead creating the entire value and "
            "do slicing",
        "R-INIT-2-parts":
            "being able to initialize sharded variable without needing to create the entire initial value",
        "R-OPT-5":
            "gradient computation and update are always performed at the component variable level",
        "R-SLOT-1":
            "Slot variable is partitioned in exactly the same way as the original variable.",
        "R-CKPT-1":
            "being able to save sharded variable to a checkpoint, and restore it to possibly a different number "
            "of shards",
        "R-DAMAGE-1":
            "add or reduce the number of parameter servers without losing previous training work",
        "R-SLOT-2":
            "At saving/loading time, optimizer sees sharded variable as a ShardedVariable instance for the "
            "purpose of elastic saving and loading.",
    },
    "001": {
        "R-POLICY-1 R-POLICY-1-rows":
            "Tensors must not be removed from the checkpoint.",
        "R-POLICY-1- R-DAMAGE-1-remove R-DAMAGE-1-truncate":
            "When loading a checkpoint, the general expectation is that all variables present before saving will "
            "be available for loading and restoration.",
        "R-POLICY-2":
            "Tensors must not be reshaped.",
        "R-POLICY-2-":
            "The user expects the tensor's shape to stay consistent between saving/loading.",
        "R-POLICY-3":
            "Tensor dtypes must not change.",
        "R-POLICY-3-":
            "loading a tensor with an altered dtype, when expecting the original dtype, would result in confusion "
            "and hard debugging",
        "R-POLICY-7":
            "Tensor re-slicing in the callback is totally fine, though.",
        "R-POLICY-4":
            "Every shard on the right has a maximum size of 500MB, so some tensors are split among multiple "
            "shards.",
        "R-POLICY-5":
            "The callback will only be called once for a given `checkpoint.save()` call.",
        "R-POLICY-6":
            "The `description` is saved alongside the tensor data in the checkpoint",
        "R-POLICY-13":
            "Note that not only can the sharding callback rearrange tensors, but also modify tensors.",
    },
    "002": {
        "R-SPEC-1":
            "indicating how each dimension can be splitted, allowing uneven sharding",
        "R-LOOKUP-4":
            "each embedding is clipped if its l2-norm is larger than this value",
        "R-OPT-1":
            "essentially dicts mapping from indices to vectors",
    },
    "003": {
        "R-READ-2":
            "no mutation is done to the Tensor returned by a read_variable_op after it's been read",
    },
    "docs/layouts.md": {
        "V-MESH-1":
            "A mesh axis that cuts a tensor axis gives its devices equal parts in the order of their coordinates.",
        "V-MESH-2":
            "Mesh axes that cut the same tensor axis are applied in their order, each to what the one before it "
            "left.",
        "V-MESH-3":
            "Where an extent does not divide, `torch.chunk` decides, or the layout is refused.",
        "V-STRIDED-1":
            "A strided shard has its part of each of `split_factor` ranges.",
        "V-STATED-1 V-FSDP-1-stated":
            "The offset and the shape that are stated for a device are those of what it holds.",
        "V-WHOLE-1":
            "The parts of all devices make the tensor again.",
        "V-MOVE-1":
            "A redistribution changes where an element is, and never its value.",
        "V-TERM-1":
            "The value of a pending tensor is the reduction of the terms along the pending axis.",
        "V-REFUSE-1 V-REFUSE-2":
            "A layout that cannot exist is refused.",
        "V-SPEC-1":
            "The mesh axes that an entry of a spec names cut its tensor axis together, the last name fastest.",
        "V-FSDP-1":
            "FSDP cuts what tensor parallelism left.",
    },
}  # fmt: skip
"""The number of an RFC or a page -> beginnings of ids -> the sentence. The longest beginning of an id counts."""


LEVELS = {
    1: "partitioning",
    2: "variables and indexing",
    3: "lookup and updates",
    4: "initialization",
    5: "optimizers",
    6: "checkpoint save and elastic restore",
    7: "policies",
    8: "robustness against damaged checkpoints",
    9: "meshes and placements",
    10: "training across layouts",
}
"""The subject of each level; the modules of ``rules`` give their levels."""

_MODULES = (
    "variables updates initialization optimizers checkpoints policies damage meshes "
    "carried computations"
).split()
_RULES: dict[str, "Rule"] = {}
# R- is the prefix of sentences of the RFCs, V- of sentences of the documentation.
_ID = re.compile(r"([RV]-[A-Z]+-\d+)[a-z-]*")
_SENTENCES = [
    (beginning, source, sentence)
    for source, sentences in SENTENCES.items()
    for beginnings, sentence in sentences.items()
    for beginning in beginnings.split()
]
Cases = st.SearchStrategy[Any] | Sequence[Any]
"""The cases of a rule: drawn by Hypothesis, or all of a list whose first ones are the simplest."""


@frozen
class Rule:
    id: str
    """The id of the sentence, with a suffix if it has several rules: ``R-SV-3-add``."""
    level: int
    """1 to 10."""
    rfc: str
    """The number of the RFC: ``000``; the path of a page of the documentation where the sentence is
    from there."""
    sentence: str
    """The sentence of the RFC or of the page, verbatim."""
    law: str
    needs: tuple[str, ...]
    """The methods that an adapter must have for the rule to be claimed."""
    cases: Cases
    check: Callable[[Calls, Any], None]
    """The check of one case; it raises ``Broken`` where the case breaks the rule."""
    isolated: bool = False
    """True if ``restore`` runs in another process, which a damaged checkpoint may kill."""

    @property
    def source(self) -> str:
        """The origin of the sentence: ``RFC 000`` or ``docs/layouts.md``."""
        return f"RFC {self.rfc}" if self.rfc.isdigit() else self.rfc

    @property
    def sentence_id(self) -> str:
        """The id of the sentence, without the suffix: ``R-SV-3``."""
        found = _ID.fullmatch(self.id)
        return found[1] if found else self.id


RuleCheck = Callable[[Calls, Any], None]
RuleRow = tuple[str, str, Cases, RuleCheck, str]
"""A rule of a table: its id, needs, cases, check and law."""


def rule(id: str, needs: str, cases: Cases, **more: Any) -> Callable[[RuleCheck], RuleCheck]:
    """Register the function as the check of a rule; ``needs`` lists methods."""

    def register(check: RuleCheck) -> RuleCheck:
        law = " ".join((check.__doc__ or "").split()).removesuffix(".")
        rules((id, needs, cases, check, law), **more)
        return check

    return register


def rules(*rows: RuleRow, level: int = 0, isolated: bool = False) -> None:
    """Register rules; without a level, it is the highest of the methods that they need."""
    for name, needs, cases, check, law in rows:
        if name in _RULES or not _ID.fullmatch(name):
            raise ValueError(f"{name} is already registered, or is not an id such as R-SV-3-add.")
        words = tuple(needs.split())
        levels = [LEVEL_OF[word] for word in words]
        _, source, sentence = max(entry for entry in _SENTENCES if name.startswith(entry[0]))
        _RULES[name] = Rule(
            name, level or max(levels), source, sentence, law, words, cases, check, isolated
        )


def refuses(method: str) -> RuleCheck:
    return lambda adapter, case: adapter.refuses(method, *case)


def all_rules() -> list[Rule]:
    """Return every rule, by level and in the order of the modules."""
    return sorted(_RULES.values(), key=lambda rule: rule.level)


def rules_of(levels: range) -> Iterator[Rule]:
    return (rule for rule in all_rules() if rule.level in levels)


# Here and not in ``all_rules``, where a module that was imported before the others would come first.
for _module in _MODULES:
    import_module(f"{__name__}.{_module}")
