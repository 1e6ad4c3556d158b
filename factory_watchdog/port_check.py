"""Whose the port of a backend is: looked at once in each life, afresh before a restart, and before any key is sent."""

from __future__ import annotations

from collections.abc import Callable

from factory_watchdog.config import schema
from factory_watchdog.core.model import Owner, Port, Reading, UnitFacts
from factory_watchdog.ports import Units
from factory_watchdog.world.secrets import SecretError, read_secret


class KeyWithheldError(SecretError):
    """The key is not sent, because whoever listens is another, or nobody knows yet who does."""


class PortCheck:
    """The look at one backend's port. `warn` is told once in each life where it cannot be said whose the port is."""

    def __init__(self, config: schema.Backend, units: Units | None, warn: Callable[[str], None]) -> None:
        self._config = config
        self._units = units if config.unit is not None and config.verify_owner else None
        self._warn = warn
        self._port: Port | None = None
        self._life: tuple[str | None, int | None] | None = None
        self._warned: tuple[str | None, int | None] | None = None

    @property
    def comes_first(self) -> bool:
        """Whether the look has to come before any page, since one of them may want the key."""
        return self._units is not None and self._config.api_key_file is not None

    async def look(self, facts: UnitFacts | None, *, fresh: bool) -> Port | None:
        """Whose the port is in the unit's life that `facts` tell; None where there is nothing to look for.

        What was the unit's in this life stays it, unless a `fresh` look is wanted. Where the service manager tells
        nothing, the last look stands.
        """
        if self._units is None or facts is None or not facts.told:
            return self._port
        life = (facts.invocation, facts.main_pid)
        known = self._port is not None and self._port.owner is Owner.UNIT and life == self._life
        if fresh or not known:
            self._port = await self._owner(self._units, facts, fresh=fresh)
        self._life = life
        return self._port

    async def _owner(self, units: Units, facts: UnitFacts, *, fresh: bool) -> Port | None:
        """A unit without processes is looked for only where it counts: who took its port keeps it from starting."""
        unit = self._config.unit or ""
        if facts.control_group is None:
            if facts.active == "active":
                return Port(Owner.UNKNOWN, f"the service manager tells no control group of {unit}")
            if not fresh and (self._port is None or self._port.owner is not Owner.FOREIGN):
                return None
        return await units.port_owner(self._config.url, unit, facts.control_group)

    def tell(self, reading: Reading) -> None:
        """Warn where somebody answers and it cannot be said who."""
        port = reading.port
        if port is None or port.owner not in (Owner.CONTAINER, Owner.UNKNOWN) or self._warned == self._life:
            return
        if reading.health.status is not None or reading.metrics.status is not None:
            self._warned = self._life
            self._warn(f"whose the port is cannot be told: {port.detail}")

    def key(self) -> dict[str, str]:
        """The header with the API key, none where none is configured. Raises SecretError, KeyWithheldError is one."""
        if self._config.api_key_file is None:
            return {}
        if self._units is not None and self._port is None:
            unit = self._config.unit
            raise KeyWithheldError(f"no key is sent before it is known who listens, and {unit} is not known to run")
        if self._units is not None and self._port is not None and self._port.owner is Owner.FOREIGN:
            raise KeyWithheldError(f"no key is sent: {self._port.detail}")
        return {"Authorization": f"Bearer {read_secret(self._config.api_key_file)}"}
