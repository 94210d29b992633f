"""The pytest plugin, which does nothing unless pytest is asked for ``shardvar.conformance``.

pytest loads this module in every run of everybody who has shardvar installed. Until the kit is asked for, it therefore
imports nothing, collects nothing, and adds no option, since an option's name may be somebody else's too.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

PACKAGE = "shardvar.conformance"


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
    """Whether an argument is the package, by its name or its path."""
    arguments = () if config is None else config.invocation_params.args
    names = (str(argument).replace("/", ".").replace("\\", ".").rstrip(".") for argument in arguments)
    return any(name == PACKAGE or name.endswith(f".{PACKAGE}") for name in names)
