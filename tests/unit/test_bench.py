"""The benchmarks' own logic: what counts as better, what is written, what the page admits."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bench import page, plots, soak, targets
from bench.catalogue import COMPARED, SHAPES, SYSTEMS, known
from bench.metering import Counters
from bench.peers.protocol import Figure
from bench.peers.venvs import VERSIONS, pins
from bench.results import Results, merged
from bench.table import ordered, ratio

ADAPTERS = VERSIONS.parent


def row(system: str, value: float | None, better: str = "higher", **more: Any) -> dict[str, Any]:
    found = {"shape": "500 x 5 steps", "database": "postgres", "system": system, "value": value}
    return found | {"unit": "steps/s", "better": better, "cpu_ms": None, "samples": []} | more


def test_the_best_of_the_repeats_counts_and_every_one_is_kept() -> None:
    results = Results()
    for value in (10.0, 30.0, 20.0):
        results.keep("postgres", Figure("runs", value, "runs/s", "higher"))
        results.keep("postgres", Figure("wait", value, "ms", "lower"))
    found = {row["shape"]: row for row in results.rows()}
    assert (found["runs"]["value"], found["wait"]["value"]) == (30.0, 10.0)
    assert found["runs"]["samples"] == [10.0, 30.0, 20.0]


def test_rows_have_what_readers_of_the_results_rely_on() -> None:
    results = Results()
    figure = Figure("runs", 100.0, "runs/s", "higher", cpu_ms=0.5, units=1000, cpu_client=0.3, cpu_server=0.2)
    results.keep("postgres", figure)
    document = results.document(datetime.now(UTC), {"repeat": 1})
    json.dumps(document)
    assert {"machine", "versions", "rows"} <= set(document)
    (found,) = document["rows"]
    assert {"shape", "database", "system", "value", "unit", "better", "cpu_ms", "samples"} <= set(found)
    assert found["system"] == "detent"
    assert found["cpu_client_ms"] == pytest.approx(0.3)
    assert found["cpu_server_ms"] == pytest.approx(0.2)


def test_what_could_not_be_measured_is_a_row_with_its_reason() -> None:
    results = Results()
    results.fail("runs", "postgres", "waymark", "not installed: no wheel for this machine")
    (found,) = results.rows()
    assert (found["value"], found["reason"]) == (None, "not installed: no wheel for this machine")


def test_a_failure_in_one_round_does_not_hide_the_figure_of_another() -> None:
    results = Results()
    results.keep("postgres", Figure("runs", 100.0, "runs/s", "higher", system="dbos"))
    results.fail("runs", "postgres", "dbos", "not done within 120 s")
    (found,) = results.rows()
    assert found["value"] == 100.0


def test_a_ratio_above_one_means_that_detent_is_ahead_whichever_way_is_better() -> None:
    rows = [row("detent", 1000.0), row("dbos", 100.0)]
    assert ratio(rows[1], rows) == 10.0
    rows = [row("detent", 2.0, "lower", unit="ms"), row("dbos", 10.0, "lower", unit="ms")]
    assert ratio(rows[1], rows) == 5.0


def test_a_peer_with_a_store_of_its_own_is_compared_with_detent_on_postgresql() -> None:
    rows = [
        row("detent", 1000.0),
        row("detent", 9.0, database="sqlite"),
        row("celery", 500.0, database="redis"),
    ]
    assert ratio(rows[2], rows) == 2.0


def test_nothing_is_compared_with_a_figure_that_is_missing() -> None:
    rows = [row("detent", 1000.0), row("dbos", None)]
    assert ratio(rows[1], rows) is None
    assert [each["system"] for each in ordered([rows[1], rows[0]])] == ["detent", "dbos"]


def test_the_page_admits_where_a_peer_is_ahead_and_what_misses_its_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = tmp_path / "results.json"
    rows = [row("detent", 5_000.0), row("quick", 6_000.0), row("slow|one", None, reason="not | installed")]
    machine = {"cores": 2, "python": "3.11", "system": "Linux", "processor": None}
    document = {"at": "2026-01-01T00:00", "machine": machine, "rows": rows, "settings": {"repeat": 1}}
    results.write_text(json.dumps(document))
    monkeypatch.setattr(page, "DOCS", tmp_path)
    monkeypatch.setattr(soak, "RESULTS", tmp_path)
    text = page.write_page([results]).read_text()
    assert "quick on postgres is 1.20 times as good as Detent" in text
    assert "500 x 5 steps on postgres: 5,000 steps/s; the target is at least 20,000" in text
    assert "not / installed" in text
    for plot in (tmp_path / "benchmarks").glob("*.svg"):
        ElementTree.parse(plot)


def test_shapes_that_were_measured_again_show_the_best_of_all() -> None:
    first = {"rows": [row("detent", 10.0), row("quick", 20.0)], "settings": {"repeat": 1}}
    again = {"rows": [row("detent", 30.0), row("quick", 15.0)], "settings": {"repeat": 2}}
    found = merged([first, again])
    assert [(each["system"], each["value"]) for each in found["rows"]] == [("detent", 30.0), ("quick", 20.0)]
    assert found["repeats"] == {row("detent", 1.0)["shape"]: {"detent": 3, "quick": 3}}


def test_a_system_that_was_not_measured_again_does_not_count_as_repeated() -> None:
    first = {"rows": [row("detent", 10.0), row("quick", 20.0)], "settings": {"repeat": 1}}
    again = {"rows": [row("detent", 30.0)], "settings": {"repeat": 2}}
    found = merged([first, again])
    shape = row("detent", 1.0)["shape"]
    assert found["repeats"] == {shape: {"detent": 3, "quick": 1}}
    assert page.more_repeats(found["repeats"]) == [f"best of 3 for detent: {shape}"]


def test_a_failure_disappears_when_another_run_has_the_figure() -> None:
    failed = {"rows": [row("detent", None, unit=None, reason="too slow")], "settings": {"repeat": 1}}
    again = {"rows": [row("detent", 30.0)], "settings": {"repeat": 1}}
    for documents in ([failed, again], [again, failed]):
        assert [each["value"] for each in merged(documents)["rows"]] == [30.0]


def test_a_limit_is_no_peer_that_detent_is_behind() -> None:
    rows = [row("detent", 1000.0), row("limit:one-row-commits", 2000.0, unit="commits/s")]
    assert targets.behind(rows) == []


def test_bars_say_when_their_scale_is_logarithmic() -> None:
    assert "logarithmic" in plots.bars("t", [("Detent", 1000.0, "1,000"), ("other", 1.0, "1")])
    assert "logarithmic" not in plots.bars("t", [("Detent", 10.0, "10"), ("other", 5.0, "5 & less")])


def test_counters_that_a_server_does_not_have_stay_unknown() -> None:
    found = Counters(2.0, 10.0, wal_bytes=300.0).since(Counters(0.5, 4.0, wal_bytes=100.0))
    assert found == Counters(1.5, 6.0, writes=None, statements=None, wal_bytes=200.0)


def test_a_soak_is_flat_or_says_what_has_grown() -> None:
    flat = [_slice(number, claim=100.0) for number in range(1, 21)]
    assert soak.grown(flat) == []
    steep = [_slice(number, claim=100.0 * number) for number in range(1, 21)]
    (sentence,) = soak.grown(steep)
    assert "a claim's cost for each execution has grown" in sentence


def test_a_soak_on_a_machine_that_gets_slower_is_flat() -> None:
    slowing = [_slice(number, claim=100.0 * number, fresh=80.0 * number) for number in range(1, 21)]
    assert soak.grown(slowing) == []


def test_a_soak_without_empty_claims_at_first_still_says_that_they_have_grown() -> None:
    def slices(empty: Callable[[int], float]) -> list[soak.Slice]:
        return [_slice(number, claim=100.0, empty=empty(number)) for number in range(1, 21)]

    assert soak.grown(slices(lambda number: 0.0 if number < 10 else 8.0)) == []
    (sentence,) = soak.grown(slices(lambda number: 0.0 if number < 10 else 8.0 * number**2))
    assert "a claim on an empty queue has grown" in sentence


def _slice(number: int, claim: float, fresh: float = 80.0, empty: float = 0.1) -> soak.Slice:
    return soak.Slice(
        executions=number * 1000,
        per_second=1000.0,
        claims=10,
        claim_ms_p50=1.0,
        claim_ms_p99=2.0,
        claim_us_per_execution=claim,
        empty_claim_ms=empty,
        look_ms=0.1,
        look_pages=10,
        look_share=0.0,
        tables_mib=1.0,
        indexes_mib=1.0,
        bytes_per_execution=1000.0,
        dead_rows=0,
        start_ms_p50=1.0,
        start_ms_p99=2.0,
        fresh_per_second=1100.0,
        fresh_claim_us_per_execution=fresh,
        fresh_empty_claim_ms=0.0,
        fresh_start_ms_p50=0.9,
    )


def test_every_peer_has_pinned_versions_and_an_adapter() -> None:
    peers = set(SYSTEMS) - {"detent"}
    assert set(pins()) == peers
    assert {name for name in peers if not (ADAPTERS / f"{name}.py").is_file()} == set()
    assert all(any("==" in part for part in pin.pip) for pin in pins().values())


def test_an_unknown_name_is_refused_instead_of_measuring_nothing() -> None:
    assert set(COMPARED) <= set(SHAPES)
    with pytest.raises(SystemExit, match="nonsense"):
        known(["steps", "nonsense"], SHAPES)
