"""Writes lines into one ledger, each once however often it is begun anew: `clerk URL WHO COUNT`."""

import faulthandler
import sys

import detent

from .ledger import Add, Ledger


def main(url: str, who: str, count: int) -> None:
    app = detent.App(url, include=[Ledger]).open()
    for number in range(count):
        app.execute(Ledger, Add("shared", f"{who}-{number}"), input_id=f"{who}-{number}")
    app.close()


if __name__ == "__main__":
    faulthandler.enable()
    url, who, count = sys.argv[1:]
    main(url, who, int(count))
