"""Claims are prepared once, counted, refused in words, and survive a daemon that is killed anywhere."""

import asyncio
import json
import resource
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest

from gpushare_plugin.base.structs import replace
from gpushare_plugin.core.prepared_claim import ClaimUser
from gpushare_plugin.kubelet.claim_files import RECORD_VERSION
from gpushare_plugin.node.claims import records
from gpushare_plugin.node.claims.preparation import MOST_READS
from gpushare_plugin.testing.runtime.edits import UnresolvableDeviceError, edits_of
from tests.unit.node.claims.claims import BOOT, DRIVER, GPU, Claims, claim_id, share
from tests.unit.node.claims.killed import killed_before
from tests.waiting import until

FIRST, SECOND, THIRD, TORN = map(claim_id, ("first", "second", "third", "torn"))


async def test_a_prepared_claim_has_its_limit_in_a_real_cdi_file(tmp_path: Path) -> None:
    """The runtime finds the limit of the claim under the name in the answer, beside the name of the card."""
    claims = Claims(tmp_path, share("first", 10))
    answer = (await claims.daemon().prepare([FIRST]))[FIRST.uid]
    assert not isinstance(answer, str)
    (device,) = answer
    assert device.cdi_devices == (f"{DRIVER}/claim={FIRST.uid}-gpu", f"nvidia.com/gpu={GPU}")
    edits = edits_of(device.cdi_devices[:1], [claims.cdi])
    assert edits.environment == {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=10240M"}


async def test_a_claim_keeps_its_pods_and_what_limits_them(tmp_path: Path) -> None:
    """Also a daemon that was restarted knows the pods of the claim and the variables of its CDI file."""
    claims = Claims(tmp_path, share("first", 10))
    await claims.daemon().prepare([FIRST])
    restarted = claims.daemon()
    await restarted.look()
    (claim,) = restarted.prepared.value
    assert claim.users == (ClaimUser("pod-first", "uid-first"),)
    assert claim.devices[0].environment == {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=10240M"}


async def test_a_pod_that_came_later_keeps_the_claim_while_its_processes_run(tmp_path: Path) -> None:
    """Also for a daemon that was restarted; a pod that is not there any more counts only while its processes run."""
    claims = Claims(tmp_path, share("first", 10))
    daemon = claims.daemon()
    await daemon.prepare([FIRST])
    first, later, last = (ClaimUser(f"pod-{name}", f"uid-{name}") for name in ("first", "later", "last"))
    claims.running.add("uid-first")
    await daemon.learn_users(replace(share("first", 10), users=(later,)))
    assert daemon.prepared.value[0].users == (first, later)
    claims.running.clear()
    claims.running.add("uid-later")
    restarted = claims.daemon()
    assert "processes of pod pod-later still run" in (await restarted.unprepare([FIRST]))[FIRST.uid]
    await restarted.learn_users(replace(share("first", 10), users=(last,)))
    assert restarted.prepared.value[0].users == (later, last)
    claims.running.clear()
    assert await restarted.unprepare([FIRST]) == {FIRST.uid: ""}
    await restarted.learn_users(share("first", 10))
    assert claims.files == set()


async def test_a_repeated_call_gives_the_same_answer_and_brings_the_cdi_file_back(tmp_path: Path) -> None:
    """The API server is not asked again, also by a daemon that was restarted; a CDI file that vanished is written."""
    claims = Claims(tmp_path, share("first", 10))
    first = await claims.daemon().prepare([FIRST])
    before = {file: file.read_bytes() for file in claims.cdi.iterdir()}
    for file in before:
        file.unlink()
    assert await claims.daemon().prepare([FIRST]) == first
    assert {file: file.read_bytes() for file in claims.cdi.iterdir()} == before
    assert len(claims.asked) == 1


async def test_after_a_reboot_a_claim_is_prepared_as_new_under_the_same_names(tmp_path: Path) -> None:
    """Nothing of an earlier boot counts; the kubelet, which keeps the old answer, gets the same names."""
    claims = Claims(tmp_path, share("first", 70), share("second", 70))
    first = await claims.daemon().prepare([FIRST])
    for file in claims.cdi.iterdir():
        file.unlink()
    rebooted = claims.daemon("another boot")
    assert await rebooted.prepare([FIRST]) == first
    assert len(claims.asked) == 2
    rebooted = claims.daemon("a third boot")
    assert not isinstance((await rebooted.prepare([SECOND]))[SECOND.uid], str)
    assert {each.id for each in rebooted.prepared.value} == {SECOND}


async def test_memory_that_was_promised_twice_waits_for_its_holder(tmp_path: Path) -> None:
    """A claim waits until another daemon has given the memory back, and is refused with names after a while."""
    claims = Claims(tmp_path, share("first", 70), share("second", 70))
    one, other = claims.daemon(), claims.daemon()
    await one.prepare([FIRST])
    waiting = asyncio.create_task(other.prepare([SECOND]))
    await until(lambda: len(claims.asked) == 2)
    assert await one.unprepare([FIRST]) == {FIRST.uid: ""}
    assert not isinstance((await waiting)[SECOND.uid], str)
    impatient = claims.daemon(wait_for_room=0)
    refused = (await impatient.prepare([FIRST]))[FIRST.uid]
    assert isinstance(refused, str)
    assert "default/second" in refused
    assert impatient.refusals == {"no-room": 1}


async def test_a_pod_that_was_deleted_by_force_keeps_its_memory_while_it_runs(tmp_path: Path) -> None:
    """The kubelet gives its claim back within a minute, is refused, and tries again until its processes end."""
    claims = Claims(tmp_path, share("first", 70), share("second", 70))
    daemon = claims.daemon(wait_for_room=0)
    await daemon.prepare([FIRST])
    claims.running.add("uid-first")
    refused = (await daemon.unprepare([FIRST]))[FIRST.uid]
    assert refused.startswith("claim default/first: processes of pod pod-first still run")
    assert "default/first" in str((await daemon.prepare([SECOND]))[SECOND.uid])
    claims.running.clear()
    assert await daemon.unprepare([FIRST]) == {FIRST.uid: ""}
    assert not isinstance((await daemon.prepare([SECOND]))[SECOND.uid], str)


async def test_one_bad_claim_of_a_call_spoils_no_other(tmp_path: Path) -> None:
    """Each claim of a call has its own answer; what is not known is forgotten already."""
    claims = Claims(tmp_path, share("first", 10))
    daemon = claims.daemon()
    answers = await daemon.prepare([FIRST, SECOND, SECOND._replace(uid="../../etc")])
    assert answers[SECOND.uid] == "claim default/second does not exist"
    assert "is not the UID of a claim" in str(answers["../../etc"])
    assert await daemon.unprepare([SECOND, SECOND._replace(uid="../../etc")]) == {SECOND.uid: "", "../../etc": ""}
    assert {each.id for each in daemon.prepared.value} == {FIRST}


async def test_other_calls_are_answered_while_claims_come_at_once(tmp_path: Path) -> None:
    """In each turn of the event loop at most one claim has its files written, however many claims wait for theirs."""
    claims = Claims(tmp_path, *(share(str(number), 1) for number in range(50)))
    daemon = claims.daemon()
    coming = asyncio.gather(*(daemon.prepare([each]) for each in claims.allocated))
    written = [0]
    while not coming.done():
        await asyncio.sleep(0)
        written.append(sum(file.endswith(".json") for file in claims.files))
    assert written[-1] == 2 * 50
    assert max(after - before for before, after in pairwise(written)) == 2


async def test_a_uid_counts_only_with_the_name_of_its_claim(tmp_path: Path) -> None:
    """Nobody gets the answer of another claim, or gives another claim back, by its UID alone."""
    claims = Claims(tmp_path, share("first", 10))
    daemon = claims.daemon()
    await daemon.prepare([FIRST])
    for foreign in (FIRST._replace(name="foreign"), FIRST._replace(namespace="foreign")):
        for answer in (await daemon.prepare([foreign]), await daemon.unprepare([foreign])):
            assert "is that of claim default/first, which is prepared" in str(answer[FIRST.uid])
    assert daemon.refusals == {"other-claim": 2}
    assert {each.id for each in daemon.prepared.value} == {FIRST}
    assert await daemon.unprepare([FIRST]) == {FIRST.uid: ""}


async def test_so_many_claims_are_read_at_a_time_and_no_more(tmp_path: Path) -> None:
    """However many claims one call has, the API server sees a bounded number of requests."""
    ids = [claim_id(f"claim-{number}") for number in range(MOST_READS + 1)]
    claims = Claims(tmp_path, *(share(each.name, 1) for each in ids))
    claims.answering.clear()
    answers = asyncio.create_task(claims.daemon().prepare(ids))
    await until(lambda: len(claims.asked) == MOST_READS)
    assert await claims.daemon().unprepare([FIRST]) == {FIRST.uid: ""}, "other calls do not wait"
    assert len(claims.asked) == MOST_READS
    claims.answering.set()
    assert not any(isinstance(each, str) for each in (await answers).values())
    assert len(claims.asked) == MOST_READS + 1


async def test_nothing_is_left_over_of_a_claim_that_is_given_back(tmp_path: Path) -> None:
    """The record and the CDI file go, also where another daemon prepared the claim."""
    claims = Claims(tmp_path, share("first", 10))
    daemon = claims.daemon()
    await daemon.prepare([FIRST])
    assert len(claims.files) == 2
    await claims.daemon().unprepare([FIRST])
    assert claims.files == set()
    await daemon.look()
    assert daemon.prepared.value == ()


async def test_a_torn_record_costs_one_claim_and_is_named(tmp_path: Path, log: list[MutableMapping[str, Any]]) -> None:
    """Other claims are served; the claim of the torn record is prepared as new."""
    claims = Claims(tmp_path, share("first", 10), share("second", 10))
    first = await claims.daemon().prepare([FIRST])
    await claims.daemon().prepare([SECOND])
    file = claims.records / f"{FIRST.uid}.json"
    file.write_text(file.read_text()[:100])
    (claims.records / "notes.json").write_text("{}")
    daemon = claims.daemon()
    await daemon.look()
    assert {each.id for each in daemon.prepared.value} == {SECOND}
    told = {each["path"] for each in log if each["event"] == "claim_record_unreadable"}
    assert told == {str(file), str(claims.records / "notes.json")}
    assert await daemon.prepare([FIRST]) == first


@pytest.mark.parametrize("damage", ["torn behind the pods", "another form"])
async def test_what_runs_keeps_the_claim_of_a_damaged_record(tmp_path: Path, damage: str) -> None:
    """Its pod was deleted by force, so the kubelet gives the claim back while processes of the pod still run."""
    pod = "11111111-2222-3333-4444-555555555555"
    claims = Claims(tmp_path, replace(share("first", 60), users=(ClaimUser("pod", pod),)), share("second", 60))
    await claims.daemon().prepare([FIRST])
    file = claims.records / f"{FIRST.uid}.json"
    content = file.read_text()
    torn = content[: content.index(pod) + len(pod)]
    file.write_text(torn if damage == "torn behind the pods" else content.replace('"cdi": {', '"cdi": 5, "was": {'))
    claims.allocated.pop(FIRST)
    claims.running.add(pod)
    daemon = claims.daemon(wait_for_room=0)
    assert "still run" in (await daemon.unprepare([FIRST]))[FIRST.uid]
    assert isinstance((await daemon.prepare([SECOND]))[SECOND.uid], str)
    assert file.exists()
    claims.running.clear()
    assert await daemon.unprepare([FIRST]) == {FIRST.uid: ""}
    assert not isinstance((await daemon.prepare([SECOND]))[SECOND.uid], str)


async def test_a_record_of_a_newer_version_is_left_alone_and_named(tmp_path: Path) -> None:
    """The claim is refused, and given back without a change of the files, which the newer version needs."""
    claims = Claims(tmp_path, share("first", 10))
    await claims.daemon().prepare([FIRST])
    file = claims.records / f"{FIRST.uid}.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"version": RECORD_VERSION + 1}))
    before, daemon = claims.files, claims.daemon("another boot")
    refused = (await daemon.prepare([FIRST]))[FIRST.uid]
    assert isinstance(refused, str)
    assert str(file) in refused
    assert "newer version" in refused
    assert await daemon.unprepare([FIRST]) == {FIRST.uid: ""}
    assert claims.files == before


async def test_a_record_that_people_remove_is_not_waited_for_any_more(tmp_path: Path) -> None:
    """The prepared claims are known again, without a restart."""
    claims = Claims(tmp_path, share("first", 10))
    daemon = claims.daemon()
    await daemon.prepare([FIRST])
    file = claims.records / "torn.json"
    file.write_text("{")
    later = claims.daemon()
    async with later.still() as prepared:
        assert prepared is None
    file.unlink()
    async with later.still() as prepared:
        assert [each.id for each in prepared or ()] == [FIRST]


async def test_a_record_of_a_newer_version_tells_its_claim_where_it_can(tmp_path: Path) -> None:
    """Its GPUs are kept from the device plugin, and what it holds counts, whatever else the record says."""
    claims = Claims(tmp_path, share("first", 10))
    await claims.daemon().prepare([FIRST])
    file = claims.records / f"{FIRST.uid}.json"
    newer = json.loads(file.read_text()) | {"version": RECORD_VERSION + 1, "cdi": 5}
    found = records.ClaimRecords(claims.records, BOOT)
    for content, told in (newer, [GPU]), (newer | {"claim": {"devices": 5}}, []):
        file.write_text(json.dumps(content))
        async with found.exclusive():
            claim = found.unreadable[FIRST.uid].claim
            assert [each.gpu for each in (claim.devices if claim else ())] == told


@pytest.mark.parametrize("damage", ["torn", "of a newer version", "of another form, and newer"])
async def test_what_the_claim_of_a_bad_record_holds_is_given_to_no_other_claim(tmp_path: Path, damage: str) -> None:
    """Until the kubelet gives the claim back; a claim whose own record is torn is prepared anew, beside another one."""
    claims = Claims(tmp_path, share("first", 60), share("second", 60), share("third", 1), share("torn", 1))
    await claims.daemon().prepare([FIRST])
    file = claims.records / f"{FIRST.uid}.json"
    newer = json.loads(file.read_text()) | {"version": RECORD_VERSION + 1}
    contents = {"torn": file.read_text()[:100], "of a newer version": json.dumps(newer)}
    file.write_text(contents.get(damage, json.dumps(newer | {"claim": []})))
    daemon = claims.daemon(wait_for_room=0)
    refused = (await daemon.prepare([SECOND]))[SECOND.uid]
    assert isinstance(refused, str)
    assert ("default/first" if damage == "of a newer version" else str(file)) in refused
    assert daemon.refusals == {"no-room": 1}
    fits = (await daemon.prepare([THIRD]))[THIRD.uid]
    assert isinstance(fits, str) == (damage != "of a newer version")
    (claims.records / f"{TORN.uid}.json").write_text("")
    (claims.records / "writer").unlink()
    assert not isinstance((await daemon.prepare([TORN]))[TORN.uid], str)
    assert await daemon.unprepare([FIRST]) == {FIRST.uid: ""}
    assert not isinstance((await daemon.prepare([SECOND]))[SECOND.uid], str)
    assert file.exists() == (damage != "torn")
    async with daemon.still() as prepared:
        assert prepared is not None


async def test_files_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    """Without the directory of CDI the claim is refused, and prepared once the directory is there."""
    claims = Claims(tmp_path, share("first", 10))
    claims.cdi.rmdir()
    daemon = claims.daemon()
    refused = (await daemon.prepare([FIRST]))[FIRST.uid]
    assert isinstance(refused, str)
    assert str(claims.cdi) in refused
    claims.cdi.mkdir()
    assert not isinstance((await daemon.prepare([FIRST]))[FIRST.uid], str)


async def test_on_a_full_disk_claims_are_given_back(tmp_path: Path) -> None:
    """By a daemon that starts there, too, and another daemon knows; new claims are refused."""
    claims = Claims(tmp_path, share("first", 10), share("second", 10), share("third", 10))
    other = claims.daemon()
    await other.prepare([FIRST, SECOND])
    with full_disk():
        started = claims.daemon()
        await started.look()
        assert {each.id for each in started.prepared.value} == {FIRST, SECOND}
        assert await started.unprepare([FIRST]) == {FIRST.uid: ""}
        await other.look()
        assert {each.id for each in other.prepared.value} == {SECOND}
        assert isinstance((await started.prepare([THIRD]))[THIRD.uid], str)
        assert await other.unprepare([SECOND]) == {SECOND.uid: ""}
    await started.look()
    assert started.prepared.value == ()


@contextmanager
def full_disk() -> Iterator[None]:
    """Let no write of this process succeed."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_a_claim_without_its_cdi_file_is_shown_and_can_be_given_back(tmp_path: Path) -> None:
    """What was recorded counts; a CDI file that never was is not removed, whatever is wrong with the directory."""
    claims = Claims(tmp_path, share("first", 10))
    claims.cdi.rmdir()
    claims.cdi.write_text("no directory")
    daemon = claims.daemon()
    assert isinstance((await daemon.prepare([FIRST]))[FIRST.uid], str)
    assert [each.id for each in daemon.prepared.value] == [FIRST]
    assert await daemon.unprepare([FIRST]) == {FIRST.uid: ""}
    assert daemon.prepared.value == ()


def test_killed_before_any_line_of_prepare(tmp_path: Path) -> None:
    """The next daemon gives the same answer, or gives the claim back, and nothing is left over."""
    whole = Claims(_folder(tmp_path, "whole"), share("first", 10))
    expected = asyncio.run(whole.daemon().prepare([FIRST]))
    for line in count(1):
        again = Claims(_folder(tmp_path, f"again{line}"), share("first", 10))
        back = Claims(_folder(tmp_path, f"back{line}"), share("first", 10))
        killed = killed_before(line, lambda again=again: again.daemon().prepare([FIRST]))  # type: ignore[misc]
        assert asyncio.run(again.daemon().prepare([FIRST])) == expected
        assert again.files == whole.files
        killed_before(line, lambda back=back: back.daemon().prepare([FIRST]))  # type: ignore[misc]
        assert asyncio.run(back.daemon().unprepare([FIRST])) == {FIRST.uid: ""}
        assert back.files == set()
        if not killed:
            break


def test_killed_before_any_line_of_unprepare(tmp_path: Path) -> None:
    """The claim counts until the call is repeated, or its container finds its CDI file; then nothing is left over."""
    for line in count(1):
        claims = Claims(_folder(tmp_path, f"at{line}"), share("first", 10))
        answer = asyncio.run(claims.daemon().prepare([FIRST]))[FIRST.uid]
        killed = killed_before(line, lambda claims=claims: claims.daemon().unprepare([FIRST]))  # type: ignore[misc]
        daemon = claims.daemon()
        asyncio.run(daemon.look())
        try:
            assert not isinstance(answer, str)
            edits_of(answer[0].cdi_devices[:1], [claims.cdi])
        except UnresolvableDeviceError:
            pass
        else:
            assert daemon.prepared.value
        assert asyncio.run(daemon.unprepare([FIRST])) == {FIRST.uid: ""}
        assert claims.files == set()
        if not killed:
            break


def _folder(parent: Path, name: str) -> Path:
    folder = parent / name
    folder.mkdir()
    return folder
