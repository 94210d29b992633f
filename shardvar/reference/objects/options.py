"""TensorFlow's options for writing a checkpoint of objects, as far as they mean something here."""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from shardvar.errors import ArgumentError, ArgumentTypeError
from shardvar.verbs.arguments import check_policy

if TYPE_CHECKING:
    from shardvar.planning.policies import Policy

_REFUSED = {
    "experimental_io_device": "Every task writes by itself; give a ShardByDevicePolicy to keep devices apart.",
    "enable_async": "Give `background=True` to `Checkpoint.save`.",
    "experimental_write_callbacks": "Call them once `write` has returned; the checkpoint is committed then.",
    "experimental_skip_slot_variables": "Leave the optimizer out of the checkpoint.",
}
"""TensorFlow's other options, each with what to do instead."""


@dataclass(frozen=True, slots=True)
class CheckpointOptions:
    """Options of ``Checkpoint.write``.

    R-POLICY-18 (RFC 001): "I propose adding an `experimental_sharding_callback` option to
    `CheckpointOptions`."

    The fields have the names of ``tf.train.CheckpointOptions``. Fields without a meaning here
    accept only TensorFlow's defaults.

    Examples
    --------
    >>> import shardvar as sv
    >>> sv.CheckpointOptions(experimental_sharding_callback=sv.MaxShardSizePolicy(500 * 2**20)).policy.max_shard_size
    524288000
    """

    experimental_sharding_callback: "Policy | None" = None
    """The policy that puts slices in files, as ``policy=`` takes it; None for a file a task."""
    experimental_io_device: None = None
    """Refused."""
    enable_async: bool = False
    """Refused."""
    experimental_write_callbacks: None = None
    """Refused."""
    experimental_skip_slot_variables: bool = False
    """Refused."""

    def __post_init__(self) -> None:
        check_policy(self.experimental_sharding_callback)
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in _REFUSED and value is not field.default:
                raise ArgumentError(
                    f"{field.name}={value!r} means nothing here.", _REFUSED[field.name]
                )

    @property
    def policy(self) -> "Policy | None":
        """The policy, under the name that it has elsewhere."""
        return self.experimental_sharding_callback


def policy_of(policy: "Policy | None", options: CheckpointOptions | None) -> "Policy | None":
    """Return the policy, given in one of two ways; ``ArgumentError`` if in both."""
    check_policy(policy)
    if options is None:
        return policy
    given: Any = options
    if not isinstance(given, CheckpointOptions):
        raise ArgumentTypeError(f"{given!r} are not options.", "Give a CheckpointOptions.")
    if policy is not None and options.policy is not None:
        raise ArgumentError(
            "A policy is given twice, by itself and in the options.", "Give it once."
        )
    return policy or options.policy
