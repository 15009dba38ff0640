import json

from emulator.checks.findings import Finding, FindingLog, SourceLocation, Strength

HERE = SourceLocation("k.py", 3, "gemm")
THERE = SourceLocation("k.py", 9)


def race(line: SourceLocation = HERE, strength: Strength = "race", message: str = "m") -> Finding:
    return Finding(
        "race.smem.write-read", strength, message, "fix it", (line,), ("Asmem",), 0, (1, 2), (), {"bytes": 4}
    )


def test_json_round_trip_has_every_field() -> None:
    data = json.loads(json.dumps(race().to_json()))
    assert data["locations"] == [{"file": "k.py", "line": 3, "function": "gemm"}]
    assert data["warps"] == [1, 2] and data["data"] == {"bytes": 4} and data["strength"] == "race"


def test_repeats_are_counted_once() -> None:
    log = FindingLog()
    assert log.add(race(message="first"))
    assert not log.add(race(message="second"))
    assert log.add(race(THERE))
    assert len(log) == 2 and log.count(race()) == 2
    assert log.findings[0].message == "first"


def test_a_repeat_may_raise_the_strength() -> None:
    log = FindingLog()
    log.add(race(strength="lint"))
    before = log.ok
    log.add(race(strength="race"))
    assert before and not log.ok
    assert log.findings[0].strength == "race"


def test_order_is_strength_then_place() -> None:
    log = FindingLog()
    log.extend([race(THERE, "lint"), race(THERE, "race"), race(HERE, "lint")])
    log.add(Finding("x", "error", "m"))
    assert [f.strength for f in log.findings] == ["error", "race", "lint"]


def test_cap_is_per_strength() -> None:
    log = FindingLog(limit=3)
    for line in range(10):
        log.add(race(SourceLocation("k.py", line), "lint"))
    log.add(race(HERE.__class__("k.py", 99), "error"))
    assert len(log) == 4 and log.dropped == 7 and not log.ok


def test_text_names_place_and_fix() -> None:
    assert str(race()) == "k.py:3: race race.smem.write-read: m fix it"
