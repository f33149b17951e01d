"""MessageAPI: messages between the users of a workspace."""

from collections.abc import Mapping
from typing import Any

import msgspec

from agentrl.envs.tasks.bfcl.api import Answer, RefusedError

_USERS = {"Alice": "USR001", "Bob": "USR002", "Catherine": "USR003", "Daniel": "USR004"}
FIRST_ID = 67410  # of the messages sent in a conversation


class Config(msgspec.Struct, frozen=True):
    """`inbox`: of each entry the receiver, and a message or several.

    `user_map`: ids by name. `user_count`: how many ids were given, so that the next is one more.
    """

    user_map: dict[str, str] = msgspec.field(default_factory=_USERS.copy)
    user_count: int = -1
    inbox: list[dict[str, str | list[str]]] = []
    message_count: int = 0
    current_user: str | None = None


class Messages:
    """An Api."""

    def __init__(self, config: Config) -> None:
        self._ids = dict(config.user_map)
        self._user_count = len(self._ids) if config.user_count < 0 else config.user_count
        self._sent: list[list[str]] = []
        for entry in config.inbox:
            for receiver, text in entry.items():
                texts = [text] if isinstance(text, str) else text
                self._sent += [[receiver, each] for each in texts]
        self._message_count = config.message_count
        self._user = config.current_user

    def state(self) -> Any:
        return [self._ids, self._user_count, self._sent, self._message_count, self._user]

    def list_users(self) -> Answer:
        """List all users of the workspace."""
        return {"user_list": list(self._ids)}

    def get_user_id(self, user: str) -> Answer:
        """Tell the user id of a user name."""
        if user not in self._ids:
            raise RefusedError(f"get_user_id: {user}: no such user")
        return {"user_id": self._ids[user]}

    def message_login(self, user_id: str) -> Answer:
        """Log in the user of this id."""
        if user_id not in self._ids.values():
            raise RefusedError(f"message_login: {user_id}: no such user")
        self._user = user_id
        return {"login_status": True, "message": f"{user_id} is logged in"}

    def message_get_login_status(self) -> Answer:
        """Tell whether a user is logged in."""
        return {"login_status": self._user is not None}

    def send_message(self, receiver_id: str, message: str) -> Answer:
        """Send a message to the user of an id."""
        self._sender()
        if receiver_id not in self._ids.values():
            raise RefusedError(f"send_message: {receiver_id}: no such user")
        self._sent.append([receiver_id, message])
        self._message_count += 1
        number = FIRST_ID + self._message_count
        return {"sent_status": True, "message_id": number, "message": f"sent to {receiver_id}"}

    def delete_message(self, receiver_id: str) -> Answer:
        """Delete the latest message sent to the user of an id."""
        self._sender()
        for index in reversed(range(len(self._sent))):
            if self._sent[index][0] == receiver_id:
                del self._sent[index]
                self._message_count -= 1
                return {
                    "deleted_status": True,
                    "receiver_id": receiver_id,
                    "message": f"the latest message to {receiver_id} is deleted",
                }
        raise RefusedError(f"delete_message: nothing was sent to {receiver_id}")

    def view_messages_sent(self) -> Answer:
        """Show all messages sent, by receiver."""
        self._sender()
        sent: dict[str, list[str]] = {}
        for receiver, text in self._sent:
            sent.setdefault(receiver, []).append(text)
        return {"messages": sent}

    def search_messages(self, keyword: str) -> Answer:
        """Find the messages that contain a keyword, in either case."""
        self._sender()
        found = [
            {"receiver_id": receiver, "message": text}
            for receiver, text in self._sent
            if keyword.lower() in text.lower()
        ]
        return {"results": found}

    def get_message_stats(self) -> Answer:
        """Count the messages to the current user, and whom messages went to."""
        user = self._sender()
        received = sum(receiver == user for receiver, _ in self._sent)
        contacts = {receiver for receiver, _ in self._sent if receiver != user}
        return {"stats": {"received_count": received, "total_contacts": len(contacts)}}

    def add_contact(self, user_name: str) -> Answer:
        """Add a contact to the workspace."""
        if user_name in self._ids:
            raise RefusedError(f"add_contact: {user_name} is there already")
        self._user_count += 1
        user_id = f"USR{self._user_count:03d}"
        self._ids[user_name] = user_id
        return {"added_status": True, "user_id": user_id, "message": f"{user_name} is added"}

    def _sender(self) -> str:
        if self._user is None:
            raise RefusedError("no user is logged in")
        return self._user


def read(config: Mapping[str, Any]) -> Messages:
    """Raises msgspec.ValidationError. Keys that it does not know are passed over."""
    return Messages(msgspec.convert(config, Config))
