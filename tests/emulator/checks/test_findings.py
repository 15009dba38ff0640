import json

from emulator.checks.findings import Finding, FindingLog, SourceLocation, Strength, words

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


def test_repeats_at_other_stages_and_warps_become_one() -> None:
    log = FindingLog()
    for stage, warp in ((0, 3), (1, 1), (0, 3)):
        log.add(Finding("x", "race", f"stage {stage}", "", (HERE,), (f"full[{stage}]",), 0, (warp,)))
    assert len(log.findings) == 1
    f = log.findings[0]
    assert f.names == ("full[0]", "full[1]") and f.warps == (1, 3) and f.message == "stage 0"
    assert log.count(f) == 3


def test_a_finding_that_covers_the_kept_one_takes_its_place() -> None:
    log = FindingLog()
    log.add(race(message="warp 0"))
    log.add(race(message="warps 0 and 1"), covers=True)
    assert [f.message for f in log.findings] == ["warps 0 and 1"]


def test_the_other_side_of_an_early_read_is_left_out() -> None:
    def finding(code: str, *lines: SourceLocation, name: str = "tile") -> Finding:
        return Finding(code, "race", code, "", lines, (name,))

    log = FindingLog()
    log.add(finding("race.smem.read-write", THERE, HERE))
    log.add(finding("uninitialised.smem", HERE))
    log.add(finding("race.smem.write-read", HERE, THERE))
    log.add(finding("race.smem.read-write", THERE, HERE, name="other"))
    log.add(finding("race.tmem.read-write", THERE, HERE))
    assert sorted((f.code, f.names) for f in log.findings) == [
        ("race.smem.read-write", ("other",)),
        ("race.smem.write-read", ("tile",)),
        ("race.tmem.read-write", ("tile",)),
    ]


def test_consequences_come_after_causes() -> None:
    log = FindingLog()
    log.add(Finding("deadlock", "error", "b", "", (HERE,), data={"consequence": True}))
    log.add(Finding("deadlock", "error", "a", "", (THERE,)))
    assert [f.message for f in log.findings] == ["a", "b"]


def test_numbers_in_words() -> None:
    assert words([2], "warp", "warps") == "warp 2"
    assert words([3, 1], "warp", "warps") == "warps 1 and 3"
    assert words([3, 1, 2, 0], "warp", "warps") == "warps 0 to 3"
    assert words([0, 1, 4], "warp", "warps") == "warps 0, 1 and 4"
