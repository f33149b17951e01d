"""TicketAPI: support tickets of a company."""

from collections.abc import Mapping
from typing import Any

import msgspec

from agentrl.envs.tasks.bfcl.api import Answer, RefusedError

PRIORITIES = range(1, 6)  # 5 is the highest
_EDITED: Mapping[str, type] = {"title": str, "description": str, "status": str, "priority": int}


class Config(msgspec.Struct, frozen=True):
    """`ticket_queue`: tickets with an `id` and any of the other fields."""

    ticket_queue: list[dict[str, str | int | None]] = []
    ticket_counter: int = 1
    current_user: str | None = None


class Tickets:
    """An Api. Who only looks at or closes a ticket need not be logged in."""

    def __init__(self, config: Config) -> None:
        self._queue = [dict(ticket) for ticket in config.ticket_queue]
        self._counter = config.ticket_counter
        self._user = config.current_user

    def state(self) -> Any:
        return [self._queue, self._counter, self._user]

    def ticket_login(self, username: str, password: str) -> Answer:
        """Log a user in to the ticket system."""
        if not username or not password:
            return {"success": False}
        self._user = username
        return {"success": True}

    def ticket_get_login_status(self) -> Answer:
        """Tell whether a user is logged in."""
        return {"login_status": self._user is not None}

    def logout(self) -> Answer:
        """Log the current user out."""
        was, self._user = self._user, None
        return {"success": was is not None}

    def create_ticket(self, title: str, description: str = "", priority: int = 1) -> Answer:
        """Create a ticket, of priority 1 to 5 (the highest)."""
        user = self._current("create_ticket")
        _check_priority(priority)
        ticket: dict[str, str | int | None] = {
            "id": self._counter,
            "title": title,
            "description": description,
            "status": "Open",
            "priority": priority,
            "created_by": user,
        }
        self._queue.append(ticket)
        self._counter += 1
        return dict(ticket)

    def get_ticket(self, ticket_id: int) -> Answer:
        """Show a ticket."""
        return dict(self._ticket(ticket_id))

    def get_user_tickets(self, status: str | None = None) -> Answer:
        """Show the tickets that the current user created, of one status or of all."""
        user = self._current("get_user_tickets")
        tickets = [dict(each) for each in self._queue if each.get("created_by") == user]
        return {"tickets": [each for each in tickets if status in (None, each.get("status"))]}

    def close_ticket(self, ticket_id: int) -> Answer:
        """Close a ticket."""
        ticket = self._ticket(ticket_id)
        if ticket.get("status") == "Closed":
            raise RefusedError(f"close_ticket: ticket {ticket_id} is closed already")
        ticket["status"] = "Closed"
        return {"status": f"ticket {ticket_id} is closed"}

    def resolve_ticket(self, ticket_id: int, resolution: str) -> Answer:
        """Resolve a ticket with a resolution."""
        ticket = self._ticket(ticket_id)
        if ticket.get("status") == "Resolved":
            raise RefusedError(f"resolve_ticket: ticket {ticket_id} is resolved already")
        ticket["status"], ticket["resolution"] = "Resolved", resolution
        return {"status": f"ticket {ticket_id} is resolved"}

    def edit_ticket(self, ticket_id: int, updates: dict[str, Any]) -> Answer:
        """Change a ticket: its title, description, status or priority."""
        ticket = self._ticket(ticket_id)
        for name, value in updates.items():
            if name not in _EDITED or type(value) is not _EDITED[name]:
                raise RefusedError(f"edit_ticket: {name} cannot be set to this")
        if "priority" in updates:
            _check_priority(updates["priority"])
        ticket.update(updates)
        return {"status": f"ticket {ticket_id} is updated"}

    def _ticket(self, ticket_id: int) -> dict[str, str | int | None]:
        for ticket in self._queue:
            if ticket.get("id") == ticket_id:
                return ticket
        raise RefusedError(f"ticket {ticket_id} does not exist")

    def _current(self, verb: str) -> str:
        if self._user is None:
            raise RefusedError(f"{verb}: no user is logged in")
        return self._user


def read(config: Mapping[str, Any]) -> Tickets:
    """Raises msgspec.ValidationError. Keys that it does not know are passed over."""
    return Tickets(msgspec.convert(config, Config))


def _check_priority(priority: int) -> None:
    if priority not in PRIORITIES:
        raise RefusedError("priority is from 1 to 5")
