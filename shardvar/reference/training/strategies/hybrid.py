"""HybridStrategy: two strategies, and a function that chooses between them for each variable.

R-HYBRID-1 (RFC 002): "a hybrid strategy that mirrors some variables and shards other variables";
"strategy_chooser: a callable that takes variable name, variable shape and variable dtype and
returns which strategy to apply".
"""

from collections.abc import Callable
from typing import Any, Self

from shardvar.errors import ArgumentError, ArgumentTypeError
from shardvar.reference.devices import Device
from shardvar.reference.training.serialization import (
    check_config,
    deserialize,
    serializable,
    serialize,
)
from shardvar.reference.training.strategies.scope import Scope
from shardvar.reference.training.strategies.strategy import Strategy, open_arguments
from shardvar.reference.variables.scopes import NextCreator

Chooser = Callable[[str | None, tuple[int, ...], Any], "Strategy | int | None"]


@serializable
class HybridStrategy(Strategy):
    """Two strategies, and a function that chooses between them for each variable.

    Computation runs on the devices of the first one, which are also the default of its scopes.

    Parameters
    ----------
    strategy1 : Strategy
        The first strategy.
    strategy2 : Strategy
        The second strategy.
    strategy_chooser : callable
        ``chooser(name, shape, dtype)`` answers with one of the two, with 1 or 2, or None for the
        first.

    Raises
    ------
    ArgumentTypeError
        If one of them is not a strategy, or the chooser is not callable.
    """

    def __init__(self, strategy1: Strategy, strategy2: Strategy, strategy_chooser: Chooser) -> None:
        for strategy in (strategy1, strategy2):
            if not isinstance(strategy, Strategy):
                raise ArgumentTypeError(
                    f"{strategy!r} is not a strategy.", "Give two strategies and a chooser."
                )
        if not callable(strategy_chooser):
            raise ArgumentTypeError(
                f"The chooser {strategy_chooser!r} is not callable.",
                "Give chooser(name, shape, dtype).",
            )
        self.strategy1 = strategy1
        self.strategy2 = strategy2
        self.strategy_chooser = strategy_chooser

    @property
    def host_devices(self) -> tuple[Device, ...]:
        return self.strategy1.host_devices

    @property
    def replica_devices(self) -> tuple[Device, ...]:
        return self.strategy1.replica_devices

    @property
    def devices(self) -> tuple[Device, ...]:
        return tuple(dict.fromkeys((*self.strategy1.devices, *self.strategy2.devices)))

    def create_free(self, next_creator: NextCreator, kwargs: dict[str, Any], scope: Scope) -> Any:
        # The chooser wants shape and dtype, for which an initial value may have to be evaluated.
        # ``kwargs`` then holds the result, since a second evaluation of a random value would give
        # another one.
        initial, kwargs = open_arguments(kwargs)
        chosen = self._chosen(kwargs.get("name"), initial.shape, initial.dtype)
        return chosen.create_free(next_creator, kwargs, scope)

    def get_config(self) -> dict[str, Any]:
        """Return both strategies and the chooser, whose class must be registered.

        Returns
        -------
        dict
            ``strategy1``, ``strategy2`` and ``strategy_chooser``, in plain form.

        Raises
        ------
        ArgumentTypeError
            If the chooser's class is not registered.
        """
        return {
            "strategy1": serialize(self.strategy1),
            "strategy2": serialize(self.strategy2),
            "strategy_chooser": serialize(self.strategy_chooser),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        given = check_config(cls, config)
        return cls(
            **{
                name: deserialize(value) if isinstance(value, dict) else value
                for name, value in given.items()
            }
        )

    def __repr__(self) -> str:
        return f"HybridStrategy({self.strategy1}, {self.strategy2})"

    def _chosen(self, name: str | None, shape: tuple[int, ...], dtype: Any) -> Strategy:
        # 1 and 2 are for choosers that were deserialized, and have no reference to the two
        # strategies.
        answer = self.strategy_chooser(name, shape, dtype)
        if answer is None or answer is self.strategy1 or answer == 1:
            return self.strategy1
        if answer is self.strategy2 or answer == 2:
            return self.strategy2
        raise ArgumentError(
            f"The chooser answered {answer!r} for the variable {name!r}.",
            "Answer with one of its two strategies.",
        )
