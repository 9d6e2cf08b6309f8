"""A torch store that is a dictionary, as far as the control store uses one."""

from __future__ import annotations

from collections.abc import Collection

from .slots import KEYS, Slots

__all__ = ["MemoryStore", "SharedStore"]


class MemoryStore:
    """The operations of a store.

    Args:
        values: the keys with their values.
    """

    def __init__(self, values: dict[str, bytes]) -> None:
        self.values = values

    def set(self, key: str, value: str) -> None:
        self.values[key] = value.encode()

    def get(self, key: str) -> bytes:
        return self.values[key]

    def append(self, key: str, value: str) -> None:
        self.values[key] = self.values.get(key, b"") + value.encode()

    def has_extended_api(self) -> bool:
        return True

    def add(self, key: str, amount: int) -> int:
        self.values[key] = str(int(self.values.get(key, b"0")) + amount).encode()
        return int(self.values[key])

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return [self.values[key] for key in keys]

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        if self.values.get(key, b"") == expected.encode():
            self.values[key] = desired.encode()
        return self.values.get(key, expected.encode())

    def delete_key(self, key: str) -> bool:
        """Delete one key; returns whether it existed."""
        return self.values.pop(key, None) is not None

    def forget(self, prefix: str) -> bool:
        """Delete all keys that begin with the prefix; False: each must be named."""
        return self.forget_except(prefix, ())

    def forget_except(self, prefix: str, stay: Collection[str]) -> bool:
        """The same, but those that stay."""
        for key in self.keys_under(prefix):
            if key not in stay:
                self.delete_key(key)
        return True

    def list_keys(self) -> list[str]:
        """All keys."""
        return self.keys_under("")

    def keys_under(self, prefix: str) -> list[str]:
        """The keys that begin with the prefix."""
        return [key for key in self.values if key.startswith(prefix)]


class SharedStore(MemoryStore):
    """The store of a simulated job; the keys of rounds are `Slots`, found by their prefix.

    Args:
        forgets: it lists its keys, and deletes all of a prefix at once; else each by its name.
    """

    def __init__(self, *, forgets: bool) -> None:
        super().__init__({})
        self.forgets = forgets
        self.rounds: dict[str, dict[int, Slots]] = {}

    def delete_key(self, key: str) -> bool:
        if super().delete_key(key):
            return True
        slots, name = self._of_round(key)
        return slots is not None and slots.delete(name)

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        slots, _ = self._of_round(key) if key.endswith("/decision") else (None, "")
        if slots is not None and slots.decision is not None:
            return slots.decision.encode().encode()
        return super().compare_set(key, expected, desired)

    def _of_round(self, key: str) -> tuple[Slots | None, str]:
        """The round that a key is of, and the key's name there."""
        prefix, _, name = key.rpartition("/")
        if name not in KEYS:
            return None, name
        prefix, _, iteration = prefix.rpartition("/")
        rounds = self.rounds.get(prefix)
        return (None if rounds is None else rounds.get(int(iteration))), name

    def forget_except(self, prefix: str, stay: Collection[str]) -> bool:
        return self.forgets and super().forget_except(prefix, stay)

    def list_keys(self) -> list[str]:
        """All keys; a store that does not forget does not list them either.

        Raises:
            RuntimeError: it does not.
        """
        if not self.forgets:
            raise RuntimeError
        return super().list_keys()

    def keys_under(self, prefix: str) -> list[str]:
        found = super().keys_under(prefix)
        for home, rounds in self.rounds.items():
            if home.startswith(prefix) or prefix.startswith(home):
                of_rounds = (
                    f"{home}/{iteration}/{name}" for iteration, slots in rounds.items() for name in slots.names()
                )
                found += [key for key in of_rounds if key.startswith(prefix)]
        return found
