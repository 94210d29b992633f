"""The pytest plugin, which does nothing unless pytest is asked for ``shardvar.conformance``.

pytest loads this module in every run on a machine that has shardvar installed. Until a run names
the kit, the plugin therefore imports nothing, collects nothing and adds no option: the name of an
option may clash with another plugin's. The rest of the plugin is ``shardvar.conformance.session``.
"""

from typing import TYPE_CHECKING

from shardvar.conformance import PACKAGE

if TYPE_CHECKING:
    import pytest


def pytest_addoption(parser: "pytest.Parser", pluginmanager: "pytest.PytestPluginManager") -> None:
    """Add the kit's options to a run that names the kit."""
    if _is_asked(pluginmanager.get_plugin("pytestconfig")):
        from shardvar.conformance.session import add_options

        add_options(parser)


def pytest_configure(config: "pytest.Config") -> None:
    """Set the kit up in a run that names it."""
    if _is_asked(config):
        from shardvar.conformance.session import start

        start(config)


def _is_asked(config: "pytest.Config | None") -> bool:
    """Return True if an argument is the package, by its name or its path."""
    arguments = () if config is None else config.invocation_params.args
    names = (
        str(argument).replace("/", ".").replace("\\", ".").rstrip(".") for argument in arguments
    )
    return any(name == PACKAGE or name.endswith(f".{PACKAGE}") for name in names)
