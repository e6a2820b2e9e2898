"""The view of a projection: values by key, its transaction, and its tables.

What is read and written by key is kept as text for as long as this process alone moves the
projection on, and goes to the database once a batch.  As text, so that a value that is
changed without being put back is not changed at all, whatever the batch it is read in.
"""

from __future__ import annotations

import re
from typing import Any

from ..errors import DefinitionError, NameUnfit
from ..serialization.codec import Codec
from ..stores.batch.names import unfit_key
from ..stores.driver import Tx, UserTx
from ..stores.verbs import projections as stored
from .transactions import AsyncTransaction, Transaction

FEW = 500  # items of a generation that are read at once, when the first is asked for
MOST_TEXT = 32_000_000  # characters that a generation keeps in memory
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
LONGEST_TABLE = 50  # characters; PostgreSQL takes 63, with the generation's number


def table_name(name: str, generation: int) -> str:
    """The name of a generation's own table."""
    if not _IDENTIFIER.fullmatch(name) or len(name) > LONGEST_TABLE:
        raise DefinitionError(
            f"table({name!r}): give a name of letters, digits and _, of at most {LONGEST_TABLE} characters"
        )
    return f"{name}_g{generation}"


class Items:
    """The texts of one generation by key, as far as they are known here.

    They hold for the checkpoint `position`: another process that moves the projection on writes another one.
    """

    def __init__(self, name: str, generation: int, position: int) -> None:
        self.name = name
        self.generation = generation
        self.position = position
        self._texts: dict[str, str | None] = {}
        self._changed: set[str] = set()
        self._whole = False  # what is not here does not exist
        self._looked = False
        self._size = 0

    def known(self, key: str) -> bool:
        return self._whole or key in self._texts

    def text(self, key: str) -> str | None:
        return self._texts.get(key)

    def load(self, tx: Tx, key: str) -> None:
        """Read what is stored under a key."""
        if not self._looked:
            self._looked = True
            found = stored.first_items(tx, self.name, self.generation, FEW + 1)
            self._whole = len(found) <= FEW
            for other, text in found.items():
                if other not in self._texts:
                    self._keep(other, text)
            if self.known(key):
                return
        self._keep(key, stored.read_item(tx, self.name, self.generation, key))

    def change(self, key: str, text: str | None) -> None:
        self._keep(key, text)
        self._changed.add(key)

    def _keep(self, key: str, text: str | None) -> None:
        self._size += len(key) + len(text or "") - len(self._texts.get(key) or "")
        self._texts[key] = text

    def write(self, tx: Tx, position: int) -> None:
        """Write what has changed; from here on it holds for another checkpoint."""
        changed = [(key, self._texts[key]) for key in sorted(self._changed)]
        stored.write_items(tx, self.name, self.generation, changed)
        self._changed.clear()
        self.position = position
        if self._size > MOST_TEXT:
            self._texts.clear()
            self._whole, self._looked, self._size = False, True, 0


class _Writing:
    """What both kinds of views do without asking the database."""

    def __init__(self, items: Items, codec: Codec) -> None:
        self._items = items
        self._codec = codec

    @property
    def generation(self) -> int:
        """Which build of the read model this is; a rebuild makes the next one."""
        return self._items.generation

    def table(self, name: str) -> str:
        """The name of a table of this generation: `totals_g2`."""
        return table_name(name, self._items.generation)

    def __setitem__(self, key: str, value: Any) -> None:
        what = f"view key {_checked(key)!r} of projection {self._items.name!r}"
        self._items.change(key, self._codec.encode(value, what))

    def __delitem__(self, key: str) -> None:
        """Remove what is under a key; nothing happens where there is nothing."""
        self._items.change(_checked(key), None)

    def _value(self, key: str, default: Any, type: Any) -> Any:
        text = self._items.text(key)
        if text is None:
            return default
        return self._codec.decode(text, type, f"view key {key!r} of projection {self._items.name!r}")


class View(_Writing):
    """The view that a projection writes to, in the transaction of its batch.

    view["paid"] = view.get("paid", 0) + 5          # values by key, stored as JSON
    view.tx.execute(f"INSERT INTO {view.table('orders')} ...")
    """

    def __init__(self, items: Items, codec: Codec, tx: Tx, user_tx: UserTx) -> None:
        super().__init__(items, codec)
        self._tx = tx
        self.tx = Transaction(user_tx)  # your own SQL, in the same transaction

    def get(self, key: str, default: Any = None, *, type: Any = Any) -> Any:
        """The value under a key, as `type`."""
        self._find(key)
        return self._value(key, default, type)

    def __getitem__(self, key: str) -> Any:
        if key not in self:
            raise KeyError(key)
        return self._value(key, None, Any)

    def __contains__(self, key: str) -> bool:
        self._find(key)
        return self._items.text(key) is not None

    def _find(self, key: str) -> None:
        if not self._items.known(_checked(key)):
            self._items.load(self._tx, key)


class AsyncView(_Writing):
    """The view for `async def apply`: calls that may query the database are awaited.

    view["paid"] = await view.get("paid", 0) + 5
    await view.tx.execute(...)
    """

    def __init__(self, items: Items, codec: Codec, tx: Tx, transaction: AsyncTransaction) -> None:
        super().__init__(items, codec)
        self._tx = tx
        self.tx = transaction

    async def get(self, key: str, default: Any = None, *, type: Any = Any) -> Any:
        """The value under a key, as `type`."""
        if not self._items.known(_checked(key)):
            await self.tx.in_turn(lambda: self._items.load(self._tx, key))
        return self._value(key, default, type)


def _checked(key: Any) -> str:
    if not isinstance(key, str) or not key:
        raise NameUnfit("view key", repr(key)[:60], "is not a text, or is empty")
    found = unfit_key(key)
    if found is not None:
        raise found
    return key
