"""Wrong checkpoints of a training: values, slots and steps that do not come back as they were.

Most are bugs that frameworks had: slots that are bound to the number of parts (Keras), slots by the
position of their variable (Keras 3, PyTorch), a step that begins again (Optax), slots that are made
anew at the first step after a restore (TensorFlow), hyperparameters of the constructor (PyTorch).
"""

from typing import Any

import numpy as np

from spec_tests.helpers.right_adapter import Right
from spec_tests.wrong.table import change_what_is_found, change_what_is_given, wrong

Slots = dict[str, Any]


@wrong("steps_after", "R-SLOT-2-adam")
def steps_of_all_shards(self, gradients):
    """Every save counts the last step as not yet made."""
    return max(0, len(gradients) - 1)


@wrong("restored_slots", "R-SLOT-2-adam")
def slots_are_bound_to_their_part(self, path, kind, key, handle):
    """Each shard gets the saved slot of its number, if it has its shape: Keras."""
    found = Right.restored_slots(self, path, kind, key, handle)
    entries = [len(e) for e in self.opened(path)["files"]]
    if len(entries) == len(handle):
        return found
    return [self.new_slots(kind, shard) for shard in handle]


@wrong("restored_slots", "R-SLOT-2-uneven")
def slots_are_cut_by_div(self, path, kind, key, handle):
    """Slots are cut by the div rule, whatever the layout; what is missing is zeros."""
    whole = Right.restored_slots(self, path, kind, key, [np.concatenate(handle)])[0]
    bounds = self.div(sum(map(len, handle)), len(handle))
    return [
        {
            name: np.concatenate([slot[a:b], np.zeros_like(shard, slot.dtype)])[: len(shard)]
            for name, slot in whole.items()
        }
        for shard, (a, b) in zip(handle, bounds, strict=True)
    ]


@wrong("joined_slot", "R-SLOT-2-many")
def slots_in_the_order_of_names(self, parts):
    """The shards of a slot are joined in the order of their names: 0, 1, 10, 2."""
    return np.concatenate([parts[int(n)] for n in sorted(map(str, range(len(parts))))])


@wrong("saved_slots", "R-SLOT-2-adam")
def moments_change_places(self, slots):
    """The two moments of Adam are saved under each other's name."""
    found = self.by_name(slots)
    return dict(zip(reversed(list(found)), found.values(), strict=True))


@wrong("resumed", "R-SLOT-2-several")
def slots_by_position(self, path, kind, templates, layout, gradients):
    """Slots are found by the position of their variable where shapes allow: Keras 3, PyTorch."""
    keys = [k.partition("/")[2] for k in self.opened(path)["tensors"] if k[:10] == "variables/"]
    by_position = dict(zip(templates, keys, strict=False))

    def of_position(path, kind, key, handle):
        other = by_position[key]
        shape = (sum(map(len, handle)), *handle[0].shape[1:])
        fits = self.loaded(path, self.variable_key(other)).shape == shape
        return Right.restored_slots(self, path, kind, other if fits else key, handle)

    self.restored_slots = of_position
    try:
        return Right.resumed(self, path, kind, templates, layout, gradients)
    finally:
        del self.restored_slots


@wrong("joined_slot", "R-SLOT-2-dtypes")
def moments_are_float32(self, parts):
    """The moments of float64 variables are saved as float32."""
    return np.concatenate(parts).astype(np.float32).astype(np.float64)


@wrong("restored_slots", "R-SLOT-2-empty-shards")
def slots_end_at_an_empty_shard(self, path, kind, key, handle):
    """Slots behind an empty shard are made anew."""
    found = Right.restored_slots(self, path, kind, key, handle)
    empty = [n for n, shard in enumerate(handle) if not len(shard)]
    for number in range(min(empty, default=len(found)), len(found)):
        found[number] = self.new_slots(kind, handle[number])
    return found


@wrong("resumed", "R-SLOT-2-adam")
def the_rate_of_the_constructor(self, path, kind, templates, layout, gradients):
    """After a restore the rate is the default, 0.001."""
    found = Right.resumed(self, path, kind, templates, layout, [])
    after = Right.resumed(self, path, kind, templates, layout, gradients)
    slow = {}
    for key, (shards, slots) in after.items():
        moved = [
            a + (b - a) * a.dtype.type(0.01) for a, b in zip(found[key][0], shards, strict=True)
        ]
        slow[key] = (moved, slots)
    return slow


@wrong("continued", "R-SLOT-2-momentum")
def momentum_is_a_half_after_a_restore(self, kind, handle, slots, steps, gradients):
    """Of the hyperparameters momentum is not restored."""
    if kind == "momentum" and steps:
        for shard in slots:
            shard["momentum"] = shard["momentum"] / 1.8
    return Right.continued(self, kind, handle, slots, steps, gradients)


@wrong("saved_slots", "R-SLOT-2-many")
def ten_slots_are_saved(self, slots):
    """The slots of shards beyond the tenth are saved as zeros."""
    return {
        name: [part * (number < 10) for number, part in enumerate(parts)]
        for name, parts in self.by_name(slots).items()
    }


@wrong("steps_after", "R-SLOT-2-long")
def steps_in_eight_bits(self, gradients):
    """The step is a number of eight bits, which stands still: Adam in bfloat16."""
    return min(len(gradients), 255)


@wrong("resume_training", "R-SLOT-2-twice")
def a_restore_overwrites_the_checkpoint(self, path, kind, templates, layout, gradients):
    """What is restored shares the file's memory: training on changes the checkpoint."""
    found = Right.resume_training(self, path, kind, templates, layout, gradients)
    tensors = {key: self.loaded(path, key) for key in self.opened(path)["tensors"]}
    tensors |= {self.variable_key(key): value for key, value in found.items()}
    self.save(path, tensors, 1)
    return found


@wrong("slot_key", "R-SLOT-2-names")
def slots_are_named_beside_variables(self, key, name):
    """A slot m of w is saved as w/m, which a variable may be called."""
    return f"variables/{key}/{name}"


@wrong("resumed", "R-SLOT-2-several")
def slots_need_all_variables(self, path, kind, templates, layout, gradients):
    """Where only some variables are restored, their slots are made anew."""
    saved = [key for key in self.opened(path)["tensors"] if key.startswith("variables/")]
    if len(saved) == len(templates):
        return Right.resumed(self, path, kind, templates, layout, gradients)
    self.restored_slots = lambda _path, kind, _key, handle: [
        self.new_slots(kind, shard) for shard in handle
    ]
    try:
        return Right.resumed(self, path, kind, templates, layout, gradients)
    finally:
        del self.restored_slots


@wrong("check_template", "R-SLOT-2-refused")
def rows_of_a_training_are_cropped(self, value, template):
    """A variable of another shape is restored all the same."""


@wrong("resumed", "R-SLOT-2-refused")
def variables_that_are_not_there_stay(self, path, kind, templates, layout, gradients):
    """A variable that was not saved stays as it is."""
    saved = self.opened(path)["tensors"]
    there = {k: v for k, v in templates.items() if self.variable_key(k) in saved}
    found = Right.resumed(self, path, kind, there, layout, gradients)
    for key in set(templates) - set(there):
        found[key] = self.trained(kind, self.laid_out(templates[key], layout), [])
    return found


@wrong("saved_slots", "R-SLOT-2-sparse")
def slots_of_touched_rows(self, slots):
    """Only the rows that the last step touched have their slots saved: parameter servers."""
    found = self.by_name(slots)
    kept = {
        name: [np.where(np.arange(len(p)) == len(p) - 1, p.T, 0).T for p in parts]
        for name, parts in found.items()
    }
    return kept if "momentum" in kept else found


@wrong("joined_slot", "R-SLOT-2-adam")
def squares_are_saved_as_roots(self, parts):
    """Slots are clipped to one, as gradients would be."""
    return np.clip(np.concatenate(parts), -1, 1) * 0.999


@wrong("restored_slots", "R-SLOT-2-few-rows")
def more_shards_than_rows_begin_again(self, path, kind, key, handle):
    """Where a shard gets no row, the slots of all are made anew."""
    if min(map(len, handle)) == 0:
        return [self.new_slots(kind, shard) for shard in handle]
    return Right.restored_slots(self, path, kind, key, handle)


@wrong("save_training", "R-SLOT-2-adam")
def one_variable_has_slots(self, path, kind, values, layout, gradients):
    """Of a sharded variable in several parts only the first part's slots are saved."""
    joined = self.joined_slot
    self.joined_slot = lambda parts: np.concatenate(
        [parts[0], *(np.zeros_like(part) for part in parts[1:])]
    )
    try:
        Right.save_training(self, path, kind, values, layout, gradients)
    finally:
        self.joined_slot = joined


change_what_is_given(
    ("slots_uneven", "R-SLOT-1-uneven", "slots_of_the_other_rows",
     "Slots have their shapes, and the updates of the rows from the end.",
     "gradients", lambda self, value, gradients: [self.dense(g, value.shape)[::-1] for g in gradients]),
    ("save_training", "R-SLOT-2-several", "gradients_belong_by_their_places",
     "The first gradient of a step is that of the first variable, whatever its name.",
     "gradients", lambda values, gradients: [dict(zip(values, step.values(), strict=False)) for step in gradients]),
    ("resumed_slots", "R-SLOT-2-slots", "slots_keep_their_old_cut",
     "Restored slots are in as many parts as were saved.",
     "layout", lambda self, path: len(self.opened(path)["files"])),
)  # fmt: skip

change_what_is_found(
    ("restored_steps", "R-SLOT-2-adam", "a_step_too_many", "The restore counts as a step.", lambda found: found + 1),
    ("restored_slots", "R-SLOT-2-adam", "the_first_shard_is_restored",
     "Slots are restored on the first device only; the others make theirs anew.",
     lambda self, found, kind, handle: [found[0], *(self.new_slots(kind, shard) for shard in handle[1:])]),
    ("restored_slots", "R-SLOT-2-adagrad", "squares_begin_twice",
     "Adagrad's first squares are added to the restored ones.",
     lambda found: [{n: slot + 0.5 if n == "accumulator" else slot for n, slot in one.items()} for one in found]),
    ("slots_uneven", "R-SLOT-1-empty-shards", "empty_shards_have_no_slots",
     "A shard without rows has no slot, so that the later ones move up.",
     lambda found: {name: [slot for slot in slots if len(slot)] for name, slots in found.items()}),
    ("slots_uneven", "R-SLOT-1-uneven", "slots_are_padded",
     "All slots are as long as the longest: FSDP's flat parameters.",
     lambda found, sizes: {name: [np.resize(slot, (max(sizes), *slot.shape[1:])) for slot in slots]
        for name, slots in found.items()}),
    ("joined_slot", "R-SLOT-2-few-rows", "slots_are_saved_in_bfloat16", "Slots are saved with eight bits of precision.",
     lambda found: (found.astype(np.float32).view(np.uint32) & 4294901760).astype(np.uint32).view(np.float32)),
    ("slot_key", "R-SLOT-2-names", "keys_of_slots_are_cut_at_80", "The key of a slot has at most 80 characters.",
     lambda found: found[:80]),
    ("variable_key", "R-SLOT-2-names", "variables_have_bare_names", "A variable may have the name of the steps.",
     lambda found: found.removeprefix("variables/")),
)  # fmt: skip
