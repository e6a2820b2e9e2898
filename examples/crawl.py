"""Data flow in a graph: the output of a node is an argument of another.

listing -> fetch[0], fetch[1], ... -> count -> large?  yes: archive -> result
                                                      no:            result
"""

from typing import Any

import detent
from detent import step
from running import database_url

PAGES = {"/": "index news", "/a": "one two three", "/b": "four", "/c": "five six"}


@step
def list_pages(prefix: str) -> list[str]:
    return sorted(path for path in PAGES if path.startswith(prefix))


@step
async def fetch(path: str, upper: bool = False) -> str:
    return PAGES[path].upper() if upper else PAGES[path]


@step
def count_words(pages: list[str]) -> dict[str, int]:
    return {"pages": len(pages), "words": sum(len(page.split()) for page in pages)}


@step
def archive(words: int) -> str:
    return f"archive of {words} words"


def crawl(prefix: str, limit: int) -> detent.Graph:
    g = detent.Graph("crawl")
    listing = g.node("listing", job=list_pages, args={"prefix": prefix})
    # One node per item of the list; the output is the list of results, in the order of the items.
    pages = g.spread("fetch", over=listing.output, job=fetch, arg="path", args={"upper": True})
    count = g.node("count", job=count_words, args={"pages": pages.output})
    # Operators on outputs are stored, and evaluated when the run gets there.
    with g.when(count.output["words"] > limit, name="large?"):
        stored = g.node("archive", job=archive, args={"words": count.output["words"]})
        g.result({"where": stored.output, "pages": count.output["pages"]})
    with g.otherwise():
        g.result({"where": None, "pages": count.output["pages"], "first": pages.output[0]})
    return g


def make_app(url: str, **settings: Any) -> detent.App:
    return detent.App(url, include=[list_pages, fetch, count_words, archive], migrate=True, **settings)


def main(url: str) -> None:
    with make_app(url) as app:
        for limit in (5, 50):
            run = app.start(crawl("/", limit))
            print(run.result())
            for node in run.nodes():
                print(f"  {node.name}: {node.state} ({node.outcome})")


if __name__ == "__main__":
    main(database_url())
