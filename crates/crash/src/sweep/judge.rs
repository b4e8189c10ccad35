//! What must hold after a call was killed, or one of its system calls failed.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::sync::Mutex;

use ringfence::Durability;
use serde_json::Value;

use super::cases::{Before, Case, Expect, Is};
use super::outcome;
use super::traced::{self, Blow, Place, Ran, Runner};
use super::tree::{self, Tree, View};
use crate::context::{Context, Trouble};
use crate::opened::Mode;

/// Where calls are made and judged; one per worker.
#[derive(Debug)]
pub(crate) struct Bench<'c> {
    pub(crate) context: &'c Context,
    pub(crate) runner: Runner,
    pub(crate) store: PathBuf,
    /// Tables that were judged already, by digest: equal tables go on alike.
    pub(crate) known: &'c Mutex<HashSet<u64>>,
}

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    /// How the call ended, in one word.
    pub(crate) ending: &'static str,
    /// What must not be.
    pub(crate) wrong: Vec<String>,
    /// Names and lengths of what was left.
    pub(crate) shape: String,
}

/// A target that no case names.
const UNTOUCHED: u64 = 900_001;

impl Bench<'_> {
    /// Runs the binary; `@` is the table.
    pub(crate) fn ask(&self, line: &str) -> Result<Ran, Trouble> {
        let store = self.store.to_string_lossy();
        let args: Vec<String> = line
            .split(' ')
            .map(|word| if word == "@" { &*store } else { word }.to_owned())
            .collect();
        Ok(traced::plain(&self.context.binary, &args)?)
    }

    /// Makes the call of a case, undisturbed.
    pub(crate) fn again(&self, case: &Case) -> Result<Ran, Trouble> {
        let program = if case.own { &self.context.own } else { &self.context.binary };
        Ok(traced::plain(program, &case.args(&self.store))?)
    }

    /// Judges what a killed call left.
    pub(crate) fn after_kill(
        &self,
        case: &Case,
        before: &Before,
        ran: &Ran,
    ) -> Result<Verdict, Trouble> {
        let mut verdict = Verdict { ending: "killed", ..Verdict::default() };
        let answered = ran.answer().is_some_and(|answer| answer["error"].is_null());
        if answered {
            verdict.ending = "killed, acknowledged";
        }
        self.go_on(case, before, answered, &mut verdict)?;
        Ok(verdict)
    }

    /// Judges a table as if the call on it had been acknowledged.
    pub(crate) fn as_acknowledged(&self, case: &Case, before: &Before) -> Result<Verdict, Trouble> {
        let mut verdict = Verdict::default();
        self.go_on(case, before, true, &mut verdict)?;
        Ok(verdict)
    }

    /// Readers, repair, the same call again, the next grant: each must find what it may find.
    fn go_on(
        &self,
        case: &Case,
        before: &Before,
        acknowledged: bool,
        verdict: &mut Verdict,
    ) -> Result<(), Trouble> {
        let after = Tree::read(&self.store)?;
        verdict.shape = after.shape();
        match case.expect {
            Expect::Table => return self.table_again(case, verdict),
            Expect::Verdict => return self.verdict_again(case, before, verdict),
            _ => {}
        }
        let wrong = &mut verdict.wrong;
        let list = self.ask("list @ --json")?;
        let Some(mut listed) = view_of(&list, wrong) else { return Ok(()) };
        // What is done is held by nobody, and no list shows it.
        let done = tree::stored(&self.store, &after).unwrap_or_default().into_iter();
        listed.extend(done.filter(|(_, lease)| lease.status == "done"));
        if let Some(path) = after.difference(&Tree::read(&self.store)?) {
            wrong.push(format!("list changed {path}"));
        }
        let states = states(case, before, &listed, wrong);
        let wanted = if case.expect == Expect::Run { Is::Old } else { Is::New };
        if acknowledged && case.changes() && states.iter().any(|state| *state != wanted) {
            wrong.push(format!("it was acknowledged, and its records are {states:?}"));
        }
        if case.expect == Expect::Reads && after != before.tree {
            wrong.push("a reader changed the table".to_owned());
        }
        self.repair(case, before, &listed, wrong)?;
        let again = self.again(case)?;
        let fits = again.code.is_some_and(|code| case.again(&states).contains(&code));
        if !fits {
            wrong.push(format!("the same call again, on {states:?}: {}", again.ending()));
        }
        self.next_fence(&listed, wrong)
    }

    fn repair(
        &self,
        case: &Case,
        before: &Before,
        listed: &View,
        wrong: &mut Vec<String>,
    ) -> Result<(), Trouble> {
        let repair = self.ask("check @ --repair --json")?;
        let said = repair.answer().unwrap_or(Value::Null);
        if repair.code != Some(0) || said["recovered"]["left_alone"] != Value::Array(Vec::new()) {
            wrong.push(format!("check --repair: {}", repair.ending()));
        }
        let tree = Tree::read(&self.store)?;
        for path in tree.temporaries() {
            wrong.push(format!("check --repair left {path}"));
        }
        match tree::stored(&self.store, &tree) {
            Err(damage) => wrong.push(damage),
            Ok(view) if view != *listed => {
                wrong.push("list showed something else than check --repair made".to_owned());
            }
            Ok(_) => {}
        }
        // A header alone is no intent: only the product knows.
        if tree.0.values().flatten().any(|bytes| bytes.starts_with(b"RFINTENT")) {
            let check = self.ask("check @ --json")?;
            let said = check.answer().unwrap_or(Value::Null);
            if said["findings"] != Value::Array(Vec::new()) {
                wrong.push(format!("after check --repair: {}", check.ending()));
            }
        }
        if !before.pending {
            same_bytes(case, before, &tree, wrong);
        }
        Ok(())
    }

    fn next_fence(&self, listed: &View, wrong: &mut Vec<String>) -> Result<(), Trouble> {
        let next = self.ask(&format!("claim @ --json --owner op-2 --targets {UNTOUCHED}"))?;
        let fence = next.answer().and_then(|answer| answer["fence"].as_u64());
        let highest = listed.values().map(tree::Lease::fence).max().unwrap_or(0);
        match fence {
            None => wrong.push(format!("the next claim: {}", next.ending())),
            Some(fence) if fence <= highest => {
                wrong.push(format!("the next grant got fence {fence}, {highest} was there"));
            }
            Some(_) => {}
        }
        Ok(())
    }

    /// A table that may be half made can be made, is used, and has nothing else in it.
    fn table_again(&self, case: &Case, verdict: &mut Verdict) -> Result<(), Trouble> {
        let wrong = &mut verdict.wrong;
        let before = Tree::read(&self.store)?;
        let list = self.ask("list @ --json")?;
        if !matches!(list.code, Some(0 | 66)) {
            wrong.push(format!("list of a table that may be half made: {}", list.ending()));
        }
        if let Some(path) = before.difference(&Tree::read(&self.store)?) {
            wrong.push(format!("list changed {path}"));
        }
        let again = self.again(case)?;
        if again.code != Some(0) {
            wrong.push(format!("init again: {}", again.ending()));
            return Ok(());
        }
        self.next_fence(&View::new(), wrong)?;
        let repair = self.ask("check @ --repair --json")?;
        if repair.code != Some(0) {
            wrong.push(format!("check --repair: {}", repair.ending()));
        }
        for path in Tree::read(&self.store)?.temporaries() {
            wrong.push(format!("init and check --repair left {path}"));
        }
        Ok(())
    }

    /// A directory that was being tried can be tried again, and what is in it is still there.
    fn verdict_again(
        &self,
        case: &Case,
        before: &Before,
        verdict: &mut Verdict,
    ) -> Result<(), Trouble> {
        let wrong = &mut verdict.wrong;
        let again = self.again(case)?;
        if again.code != Some(0) {
            wrong.push(format!("probe again: {}", again.ending()));
        }
        let after = Tree::read(&self.store)?;
        if let Some(path) = before.tree.0.keys().find(|path| !after.0.contains_key(*path)) {
            wrong.push(format!("probe removed {path}"));
        }
        Ok(())
    }

    /// Judges a call of which one system call, or one and all later ones of its kind, failed.
    pub(crate) fn after_error(
        &self,
        case: &Case,
        before: &Before,
        place: Option<&Place>,
        ran: &Ran,
        undisturbed: &Value,
    ) -> Result<Verdict, Trouble> {
        let mut verdict = Verdict::default();
        let after = Tree::read(&self.store)?;
        verdict.ending = outcome::of(case, ran, Some(undisturbed), &mut verdict.wrong);
        // A wait goes on after a failure that was put back: what is granted then was synced on its own.
        // So does a call that makes room for later ones as well, unless no sync of data succeeds.
        let every_sync = |place: &Place| {
            matches!(place.blow, Blow::FailOn(_)) && place.call == "fdatasync" && place.when == 1
        };
        // Where there was no room to finish what a dead writer left, the table opens all the same, and the
        // call that meets it begins from the beginning: with syncs of its own, of bytes written anew.
        let opens_without_room = |place: &Place| {
            case.meets_an_intent() && matches!(place.blow, Blow::Fail("ENOSPC" | "EDQUOT"))
        };
        let promised = place.is_some_and(|place| {
            place.fails_a_sync()
                && (!case.makes_room() || every_sync(place))
                && !opens_without_room(place)
        }) && case.prelude.is_none();
        if verdict.ending == "done" && promised {
            let said = ran.ending();
            verdict.wrong.push(format!("a sync failed and it was acknowledged: {said}"));
        }
        // A lease whose token nobody could be told is given back, and one that had run out is no more.
        let there = self.there(case, &after);
        let given_back = case.expect == Expect::Granted
            && ran.struck_the_answer()
            && !case.groups.iter().flatten().any(|id| there.contains(id));
        let without = before.without(case);
        let before = if given_back { &without } else { before };
        if ran.err.contains("panicked") || ran.hung {
            verdict.wrong.push(format!("it panicked or hung: {}", ran.ending()));
        }
        // One failure must not keep the call from clearing up; those that go on may.
        if !place.is_some_and(|place| matches!(place.blow, Blow::FailOn(_))) {
            for path in after.temporaries() {
                if !before.tree.0.contains_key(path) {
                    verdict.wrong.push(format!("it left {path}"));
                }
            }
        }
        let left = after.temporaries();
        if case.expect == Expect::Repairs && verdict.ending == "done" && !left.is_empty() {
            verdict.wrong.push(format!("it says that it has repaired, and left {left:?}"));
        }
        let restored = verdict.ending == "restored" || verdict.ending == "refused";
        let unchanged = self.unchanged(case, before, &after);
        if restored && !before.pending && !unchanged {
            verdict.wrong.push("it says that nothing was changed, and records differ".to_owned());
        }
        // That nothing was changed must be said where it can be seen.
        let seen = place.is_none() && !case.own && unchanged;
        if verdict.ending == "unknown" && seen {
            verdict.wrong.push(format!("unknown, and no record was changed: {}", ran.ending()));
        }
        let done = verdict.ending == "done";
        if self.known.lock().unwrap().insert(digest(case, &after, done)) {
            self.go_on(case, before, done, &mut verdict)?;
        } else {
            verdict.shape = after.shape();
        }
        Ok(verdict)
    }
}

impl Bench<'_> {
    /// The ids of the records that are there.
    fn there(&self, case: &Case, after: &Tree) -> HashSet<String> {
        if case.mode == Mode::Journal {
            return tree::stored(&self.store, after).unwrap_or_default().into_keys().collect();
        }
        after.records().into_keys().map(str::to_owned).collect()
    }

    /// Whether every record is as it was: to the byte, or in a journal as it reads.
    pub(crate) fn unchanged(&self, case: &Case, before: &Before, after: &Tree) -> bool {
        if case.mode != Mode::Journal {
            return after.records() == before.tree.records();
        }
        let held = |view: View| -> View {
            view.into_iter().filter(|(_, lease)| lease.status != "done").collect()
        };
        case.expect == Expect::Table
            || case.expect == Expect::Verdict
            || tree::stored(&self.store, after)
                .is_ok_and(|view| held(view) == held(before.view.clone()))
    }
}

/// Compares what is shown with what was: how each record of the call is now.
pub(crate) fn states(
    case: &Case,
    before: &Before,
    listed: &View,
    wrong: &mut Vec<String>,
) -> Vec<Is> {
    let mut states = Vec::new();
    let mut named = HashSet::new();
    for group in &case.groups {
        let mut of_group = Vec::new();
        let mut tokens = HashSet::new();
        for id in group {
            named.insert(id.as_str());
            let now = listed.get(id);
            let is = case.is(before.view.get(id), now);
            if is == Is::Neither {
                wrong.push(format!("record {id} is neither old nor new: {now:?}"));
            } else if is == Is::New {
                tokens.insert(now.map(|now| (now.token.as_str(), now.updated)));
            }
            of_group.push(is);
        }
        let first = of_group.first().copied();
        let whole = of_group.iter().all(|is| Some(*is) == first) && tokens.len() <= 1;
        if case.mode.durability() == Durability::Group && !whole {
            wrong.push(format!("a group is not whole: {of_group:?}, {} tokens", tokens.len()));
        }
        states.extend(of_group);
    }
    let others = |view: &View| -> View {
        let others = view.iter().filter(|(id, _)| !named.contains(id.as_str()));
        others.map(|(id, lease)| (id.clone(), lease.clone())).collect()
    };
    if others(listed) != others(&before.view) {
        wrong.push("a record that the call does not name was changed".to_owned());
    }
    states
}

/// The records that the call does not name are the same to the byte.
fn same_bytes(case: &Case, before: &Before, after: &Tree, wrong: &mut Vec<String>) {
    let named: HashSet<&str> = case.groups.iter().flatten().map(String::as_str).collect();
    let others = |tree| -> BTreeMap<&str, &[u8]> {
        let records: BTreeMap<_, _> = Tree::records(tree);
        records.into_iter().filter(|(id, _)| !named.contains(id)).collect()
    };
    if others(&before.tree) != others(after) {
        wrong.push("bytes of a record that the call does not name were changed".to_owned());
    }
}

/// The leases that a run of `list` shows.
pub(crate) fn view_of(list: &Ran, wrong: &mut Vec<String>) -> Option<View> {
    let viewed = match list.answer() {
        Some(answer) if list.code == Some(0) => tree::listed(&answer),
        _ => Err(format!("list: {}", list.ending())),
    };
    viewed.map_err(|error| wrong.push(error)).ok()
}

fn digest(case: &Case, tree: &Tree, done: bool) -> u64 {
    use std::hash::{DefaultHasher, Hash as _, Hasher as _};
    let mut hasher = DefaultHasher::new();
    (case.name, case.mode, done, &tree.0).hash(&mut hasher);
    hasher.finish()
}
