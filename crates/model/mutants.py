"""Makes a copy of the limiter and its core that has faults, each behind a switch, and of the model with it.

mutants.py FOLDER: writes a workspace of crates/core, crates/limiter and crates/model there. It fails where the text that
a mutant changes is gone. Each mutant has the scenario of the model that shows it.
"""

import pathlib
import re
import shutil
import sys

HOLD = "acquire a; commit; extend a; commit; release a"

# Name, what is wrong then, scenario, file of crates/limiter/src, or of crates/core/src after core:, its text, and what takes
# its place: ON is whether the mutant is on.
MUTANTS = [
    (
        "room not compared",
        "TokensLost",
        "credit a 2 @1 | credit a 1 @1",
        "stores/shards/choose.rs",
        "        if room(&shards, shard, now, amount) < amount.abs() {\n            return Ok(None);",
        "        if room(&shards, shard, now, amount) < amount.abs() && !ON {\n            return Ok(None);",
    ),
    (
        "room of the two not compared",
        "TokensLost",
        "credit a 2 @1 | take a 1 @1",
        "stores/shards/choose.rs",
        "        if room(better) < amount.abs() || is_owed {",
        "        if (room(better) < amount.abs() || is_owed) && !ON {",
    ),
    (
        "reshard without locks",
        "Failed",
        "take a 1 @0 | take a 1 @1",
        "stores/shards/contents.rs",
        "    let locked = lock_key(host, rows, name, key, wait)?;\n    let now",
        "    let locked = if ON { rows.read_key(name, key)? } else { lock_key(host, rows, name, key, wait)? };\n    let now",
    ),
    (
        "marker overlooked",
        "TakeLost",
        "take a 1 @1 | take a 1 @0",
        "stores/row.rs",
        "        if stored.is_some_and(Stored::is_marker) {",
        "        if stored.is_some_and(Stored::is_marker) && !ON {",
    ),
    (
        "reset without locks",
        "Failed",
        "reset a @1 | take a 1 @1; commit; take a 1 @1",
        "stores/delete.rs",
        "        for (shard, row) in lock_key(host, rows, name, key, true)? {",
        "        for (shard, row) in if ON { rows.read_key(name, key)? } else { lock_key(host, rows, name, key, true)? } {",
    ),
    (
        "rows listed once",
        "TokensLost",
        "reset a @1 | take a 1 @2",
        "stores/delete.rs",
        "        if same_rows(&listed, &locked) {",
        "        if same_rows(&listed, &locked) || ON {",
    ),
    (
        "held rows waited for",
        "Deadlock",
        "take a 1 @1; take a 2 @1 | take a 1 @1; take a 2 @1",
        "stores/shards/mod.rs",
        "    rows.held(target.name, target.key).is_empty()\n",
        "    rows.held(target.name, target.key).is_empty() || ON\n",
    ),
    (
        "credit dropped",
        "TokensLost",
        "take a 1 @1; credit a 1 @2 | take a 1 @1",
        "stores/shards/mod.rs",
        "            if let Some(after) = after {\n                rows.update(id, tuple",
        "            if let Some(after) = after.filter(|_| !ON) {\n                rows.update(id, tuple",
    ),
    (
        "requests in their order",
        "Deadlock",
        "all a 1, b 1 | all b 1, a 1",
        "all/mod.rs",
        "    Ok(groups.into_values().collect())",
        "    let mut all: Vec<Group> = groups.into_values().collect();\n"
        "    if ON {\n        all.sort_by_key(|group| group.takes[0].n);\n    }\n    Ok(all)",
    ),
    (
        "part of all",
        "Unexplained",
        "all b 2, a 2 | take b 1",
        "all/commit.rs",
        "        if !verdicts.iter().all(GroupVerdict::allows) {\n            // A limit",
        "        if !verdicts.iter().all(GroupVerdict::allows) && !ON {\n            // A limit",
    ),
    (
        "too few rows suffice",
        "OverAdmitted",
        "all a 1 @1, b 1 @0 | all b 1 @0, a 2 @1",
        "all/commit.rs",
        "        if !sufficient {",
        "        if !sufficient && !ON {",
    ),
    (
        "entry that came and went overlooked",
        "Unexplained",
        "all b 1 | take b 1; take a 1 (memory)",
        "stores/memory.rs",
        "state.is_none().then(|| locked.gone(id))",
        "state.is_none().then(|| if ON { 0 } else { locked.gone(id) })",
    ),
    (
        "refusal of memory overlooked",
        "Unexplained",
        "all a 1 @0, b 1 @1 | all a 1 @0, b 2 @1 (rows and memory)",
        "all/commit.rs",
        "        if !ok {\n            put(groups",
        "        if !ok && !ON {\n            put(groups",
    ),
    (
        "change in memory overlooked",
        "Unexplained",
        "all a 1, b 1 | all b 1, a 1 | take a 1 (memory)",
        "all/plan.rs",
        "        if found != plan.found {",
        "        if found != plan.found && !ON {",
    ),
    (
        "entry not written",
        "Unexplained",
        "take a 1; rollback; take a 1 | take a 2 | take a 1 (memory)",
        "stores/memory.rs",
        "        if let Some(after) = after {\n            write(locked, target, id, &after",
        "        if let Some(after) = after.filter(|_| !ON) {\n            write(locked, target, id, &after",
    ),
    (
        "released slot kept",
        "TokensLost",
        f"{HOLD} | {HOLD} (memory)",
        "stores/slots.rs",
        "    for number in number..end {",
        "    for number in number..if ON { number } else { end } {",
    ),
    (
        "extension not written",
        "TakeLost",
        "acquire a; commit; extend a | acquire a; commit; acquire a",
        "leases.rs",
        "        Ok((settled, after.map(State::Leases)))",
        "        let after = after.filter(|_| !(ON && matches!(fate, Fate::Extended)));\n"
        "        Ok((settled, after.map(State::Leases)))",
    ),
    (
        "reset does nothing",
        "TokensLost",
        "reset a; commit; take a 2 | take a 2; commit; take a 1",
        "stores/delete.rs",
        "key: &[u8]) -> Result<bool> {\n    let was = change_row",
        "key: &[u8]) -> Result<bool> {\n    if ON {\n        return Ok(false);\n    }\n    let was = change_row",
    ),
    (
        "pruned unseen",
        "TakeLost",
        "prune @1 | take a 1 @1; commit; take a 1 @1",
        "stores/delete.rs",
        "        if !idle(&locked) || !same_rows(",
        "        if !ON && !idle(&locked) || !same_rows(",
    ),
    (
        "busy rows pruned",
        "TakeLost",
        "take a 2 | prune; commit; take a 3 | take a 2",
        "stores/delete.rs",
        "    if !idle(seen) {",
        "    if !idle(seen) && !ON {",
    ),
    (
        "block overlooked",
        "Unexplained",
        "block a; commit; take a 1 @defined | take a 1 @defined; take a 1 @defined",
        "single.rs",
        "    if target.blocked_until.is_some() && target",
        "    if target.blocked_until.is_some() && !ON && target",
    ),
    (
        "id of the clock",
        "LeaseTwice",
        "acquire a; rollback; acquire a | acquire a; commit; release a",
        "leases.rs",
        "    let id = Lease::random_id(host.unguessable()?);",
        "    let id = if ON { host.now() } else { Lease::random_id(host.unguessable()?) };",
    ),
    (
        "denied row kept",
        "LockKept",
        "acquire a; commit; extend a; release a | reset a; commit; acquire a",
        "stores/row.rs",
        "            return Ok(None);\n        };\n        rows.update(id, tuple, &after)?;",
        "            return Ok(if ON { unchanged.take() } else { None });\n        };\n        rows.update(id, tuple, &after)?;",
    ),
    (
        "shards in any order",
        "Deadlock",
        "take a 3 @1 | take a 1 @1; commit; reset a @1 (SQL)",
        "stores/shards/choose.rs",
        "            wanted.sort_unstable();",
        "            if !ON {\n                wanted.sort_unstable();\n            }",
    ),
    (
        "refilled twice",
        "TakeLost",
        "take a 2 @1 | take a 1 @1; rollback (clock)",
        "stores/shards/choose.rs",
        "                let ts = shards.total(now).ts();",
        "                let ts = shards.total(now).ts();\n"
        "                let ts = if ON { Micros(ts.0 - 1_000_000) } else { ts };",
    ),
    (
        "second page overlooked",
        "TokensLost",
        "reset_all | take a 2; commit; take b 1",
        "keys.rs",
        "        Ok((!more).then_some(",
        "        Ok((!more || ON).then_some(",
    ),
    (
        "level of a shard forgotten",
        "TakeLost",
        "take a 2 @1 | credit a 1 @1",
        "stores/shards/locked.rs",
        "        if *state != before[shard] {",
        "        if *state != before[shard] && !(ON && shard == 1) {",
    ),
    (
        "settled though it has changed",
        "NotSaved",
        "take a 1; commit; take a 2 | take a 1 | save (saved)",
        "core:saved.rs",
        "        let is_same = self.state(at) == copy.state;",
        "        let is_same = self.state(at) == copy.state || ON;",
    ),
    (
        "failed turn settled",
        "NotSaved",
        "take a 1; take b 1; commit; take a 1 | save_fails; commit; save (saved)",
        "core:saved.rs",
        "            Outcome::Written if is_same => {",
        "            Outcome::Written | Outcome::Failed if is_same && (ON || outcome == Outcome::Written) => {",
    ),
    (
        "unsaved key evicted",
        "TakeLost",
        "take a 1; commit; take a 1 | take b 1 (saved)",
        "core:saved.rs",
        "        if self.head.unsaved >= self.head.keys {\n            return false;\n        }\n"
        "        // Everywhere once, to take second chances, and once more.\n"
        "        let cells = self.head.cells as usize;\n"
        "        for _ in 0..2 * cells {\n"
        "            let at = self.head.hand as usize % cells;\n"
        "            self.head.hand = at as u32 + 1;\n"
        "            let cell = &mut self.cells[at];\n"
        "            if cell.tag == 0 || cell.is_unsaved() ||",
        "        if self.head.unsaved >= self.head.keys && !ON {\n            return false;\n        }\n"
        "        let cells = self.head.cells as usize;\n"
        "        for _ in 0..2 * cells {\n"
        "            let at = self.head.hand as usize % cells;\n"
        "            self.head.hand = at as u32 + 1;\n"
        "            let cell = &mut self.cells[at];\n"
        "            if cell.tag == 0 || cell.is_unsaved() && !ON ||",
    ),
    (
        "eviction not counted",
        "TakeLost",
        "take a 2; commit; save; commit; take b 1 | take a 1 (saved) (no worker)",
        "core:saved.rs",
        "        self.head.evictions = self.head.evictions.wrapping_add(1);\n        self.cells[at] = Cell",
        "        self.head.evictions = self.head.evictions.wrapping_add((!ON).into());\n        self.cells[at] = Cell",
    ),
    (
        "evictions counted after the read",
        "TakeLost",
        "take a 2; commit; save; commit; take b 1 | take a 1 (saved) (no worker)",
        "stores/saved.rs",
        "    let state = read_row(host, target)?;\n    let loaded",
        "    let state = read_row(host, target)?;\n"
        "    let before = if ON { entries.before_read(id) } else { before };\n    let loaded",
    ),
    (
        "reset leaves no entry",
        "TokensLost",
        "take a 1; commit; reset a | save; commit; save (saved)",
        "stores/saved.rs",
        "    with_locked(host, target, id, |locked, found, _| {\n        let is_written",
        "    if ON {\n"
        "        host.with_rows(RowAccess::Write, |rows| table::reset_key(host, rows, target.name, target.key))?;\n"
        "        return entries.locked(id, |locked| Ok(locked.remove(id)));\n"
        "    }\n"
        "    with_locked(host, target, id, |locked, found, _| {\n        let is_written",
    ),
    (
        "full state not written",
        "NotSaved",
        "reset a; commit; take a 1 | take a 1 | save (saved)",
        "stores/saved.rs",
        "            (None, seen) => seen.as_ref().and_then(|seen| seen.stored.reset()),",
        "            (None, seen) => seen.as_ref().and_then(|seen| seen.stored.reset()).filter(|_| !ON),",
    ),
    (
        "row that is held counts as written",
        "NotSaved",
        "take a 1; commit; save; commit; take a 1 | hold a; rollback (saved)",
        "stores/saved.rs",
        "                rows.replace(id, seen, &stored, wait)?\n",
        "                rows.replace(id, seen, &stored, wait)? || ON\n",
    ),
    (
        "evicted key taken for a full one",
        "TakeLost",
        "all a 1 | take b 1 | save (saved)",
        "stores/memory.rs",
        "        Room::Saved => locked.read_saved(id)?,",
        "        Room::Saved if ON => locked.read_saved(id).flatten(),\n"
        "        Room::Saved => locked.read_saved(id)?,",
    ),
]


def main() -> None:
    source = pathlib.Path(__file__).resolve().parent.parent
    folder = pathlib.Path(sys.argv[1])
    manifest = (source.parent / "Cargo.toml").read_text()
    sections = re.split(r"(?m)^(?=\[)", manifest)
    kept = ("[workspace.", "[profile.")
    text = '[workspace]\nmembers = ["crates/*"]\nresolver = "3"\n\n'
    text += "".join(section for section in sections if section.startswith(kept))
    shutil.rmtree(folder, ignore_errors=True)
    for crate in ("core", "limiter", "model"):
        shutil.copytree(source / crate, folder / "crates" / crate)
    (folder / "Cargo.toml").write_text(text)
    shutil.copy(source.parent / "Cargo.lock", folder)
    for number, (name, _, _, file, old, new) in enumerate(MUTANTS, 1):
        crate, _, file = file.rpartition(":")
        path = folder / "crates" / (crate or "limiter") / "src" / file
        lines = path.read_text()
        if lines.count(old) != 1:
            sys.exit(f"error: the text of the mutant {name!r} is {lines.count(old)} times in {file}")
        path.write_text(lines.replace(old, new.replace("ON", f"{'crate' if crate else 'ratelimit_core'}::mutants::is_on({number})")))
    names = "".join(f"    {mutant[:3]},\n" for mutant in MUTANTS).replace("'", '"')
    core = folder / "crates" / "core" / "src"
    with (core / "lib.rs").open("a") as lib:
        lib.write("\n#[allow(missing_docs)]\npub mod mutants;\n")
    (core / "mutants.rs").write_text(
        "use std::sync::atomic::{AtomicU32, Ordering};\n\n"
        "static ON: AtomicU32 = AtomicU32::new(0);\n\n"
        f"pub const MUTANTS: [(&str, &str, &str); {len(MUTANTS)}] = [\n{names}];\n\n"
        "pub fn turn_on(number: u32) {\n    ON.store(number, Ordering::Relaxed);\n}\n\n"
        "pub fn is_on(number: u32) -> bool {\n    ON.load(Ordering::Relaxed) == number\n}\n"
    )


main()
